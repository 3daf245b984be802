"""A server in the place of Triton, in this process: every stream is answered by the test, message by message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tritonclient.grpc import service_pb2

from gateway.conversation import Conversation
from gateway.gate import Gate
from gateway.keys import Keys
from gateway.session import Answer
from gateway.session_stream import CANCEL
from gateway.settings import GateLimits, GateSettings
from gateway.upstream import UpstreamLost
from tests.clock import ManualClock

SAMPLES_BYTES = 4 * 24_000  # a second of audio


class MovedLoop(asyncio.SelectorEventLoop):
    """Its clock, ``moved_s``, stands still until the test moves it: what a bound lets through does not depend on the machine's speed."""

    moved_s = 0.0

    def time(self) -> float:
        return self.moved_s


class FakeStream:
    """One stream to the server. ``sent``: what the gate wrote; the test answers with ``audio``, ``error``, ``final`` and ``lose``.

    room: bytes that the server still takes; None: any number. ends_itself: the server ends the stream when the gate has finished.
    """

    def __init__(self, room: int | None = None, ends_itself: bool = True) -> None:
        self.sent: list[Any] = []
        self.is_cancelled = False
        self.is_finished = False
        self.is_writing = False
        self._consumer: Callable[[bytes], None] | None = None
        self._early: list[bytes] = []  # that came before anybody receives
        self._ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()  # whether properly
        self.ends_itself = ends_itself
        self._room = room
        self._roomier = asyncio.Event()

    async def receive(self, consumer: Callable[[bytes], None]) -> None:
        self._consumer = consumer
        for data in self._early:
            consumer(data)
        if not await asyncio.shield(self._ended):
            raise UpstreamLost

    async def write(self, data: bytes) -> None:
        assert not self.is_finished and not self.is_writing
        self.is_writing = True
        try:
            while not self.is_cancelled and self._room is not None and self._room < len(data):
                self._roomier.clear()
                await self._roomier.wait()
        except asyncio.CancelledError:
            self.cancel()  # as gRPC's
            raise
        finally:
            self.is_writing = False
        if self.is_cancelled:
            raise UpstreamLost
        if self._room is not None:
            self._room -= len(data)
        self.sent.append(service_pb2.ModelInferRequest.FromString(data))

    def give_room(self, room: int) -> None:
        assert self._room is not None
        self._room += room
        self._roomier.set()

    @property
    def is_asked_to_cancel(self) -> bool:
        """By the gate itself."""
        return bool(self.sent) and self.sent[-1].id == CANCEL and self.tensors()["is_cancel"] == b"\1" and self.is_finished

    def finish(self) -> None:
        self.is_finished = True
        if self.ends_itself:
            self._end(True)

    def cancel(self) -> None:
        if not self._ended.done():
            self.is_cancelled = True
            self._roomier.set()
            self.lose()

    # What the server does

    def audio(self, request_id: str = "0", seconds: float = 0.1, final: bool = False) -> None:
        response = self._response(request_id, final)
        response.infer_response.outputs.add(name="waveform", datatype="FP32", shape=[1, 1])
        response.infer_response.raw_output_contents.append(bytes(int(SAMPLES_BYTES * seconds)))
        self._put(response)

    def error(self, message: str, request_id: str = "0") -> None:
        response = self._response(request_id, False)
        response.error_message = message
        self._put(response)

    def final(self, request_id: str = "0") -> None:
        self._put(self._response(request_id, True))

    def front_end_error(self, message: str, request_id: str = "0") -> None:
        """As Triton itself refuses: without the final flag, and nothing follows."""
        response = service_pb2.ModelStreamInferResponse(error_message=message)
        response.infer_response.id = request_id
        self._put(response)

    def lose(self) -> None:
        self._end(False)

    def tensors(self, index: int = -1) -> dict[str, bytes]:
        request = self.sent[index]
        return {tensor.name: raw for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)}

    def _put(self, response: Any) -> None:
        data = response.SerializeToString()
        if self._ended.done():
            return
        if self._consumer is None:
            self._early.append(data)
        else:
            self._consumer(data)

    def _end(self, properly: bool) -> None:
        if not self._ended.done():
            self._ended.set_result(properly)

    @staticmethod
    def _response(request_id: str, final: bool) -> Any:
        response = service_pb2.ModelStreamInferResponse()
        response.infer_response.id = request_id
        response.infer_response.parameters["triton_final_response"].bool_param = final
        return response


class FakeUpstream:
    def __init__(self) -> None:
        self.is_ready = True
        self.streams: list[FakeStream] = []
        self.make: Callable[[], FakeStream] = FakeStream
        self.text_normalization = "off"  # of the server's own

    def open_stream(self) -> FakeStream:
        self.streams.append(self.make())
        return self.streams[-1]

    async def ask(self, method: str, request: Any, response_type: Any) -> Any:
        """The configuration of the language model, the only one that has this parameter."""
        assert (method, request.name) == ("ModelConfig", "llm_bistream")
        answer = response_type()
        answer.config.parameters["text_normalization"].string_value = self.text_normalization
        return answer

    async def close(self) -> None:
        pass


class House:
    """A gate over a fake server, with a clock of the test's. Made inside the event loop."""

    def __init__(self, limits: GateLimits | None = None, keys: Keys | None = None) -> None:
        self.clock = ManualClock()
        self.upstream = FakeUpstream()
        self.gate = Gate(GateSettings(limits=limits or GateLimits()), self.upstream, keys, self.clock)  # type: ignore[arg-type]

    def client(self, address: str = "10.0.0.1", key: str | None = None) -> Conversation:
        headers = {} if key is None else {"x-api-key": key}
        return Conversation(self.gate, self.gate.caller(headers, address))

    @property
    def last(self) -> FakeStream:
        return self.upstream.streams[-1]


def run_moved(test: Coroutine[Any, Any, None]) -> None:
    """One test in a loop whose clock ``wait`` moves; no task may be left."""

    async def bounded() -> None:
        await test
        await settle()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, left

    with asyncio.Runner(loop_factory=MovedLoop) as runner:
        runner.run(bounded())


async def wait(seconds: float, step: float = 1.0) -> None:
    """Move the clock, in steps so small that no timer is late."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, MovedLoop)
    for _ in range(round(seconds / step)):
        loop.moved_s += step
        await settle(3)


async def settle(turns: int = 20) -> None:
    """Let every task go as far as it can."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def answers(client: Conversation, count: int) -> list[Answer]:
    """The next answers, each taken by the client at once."""
    taken = []
    for _ in range(count):
        answer = await client.next_answer()
        assert answer is not None
        client.sent(answer, answer.size)
        taken.append(answer)
    return taken


def told(answer: Answer) -> tuple[str, str | None]:
    """(request id, what it says): a code, ``audio`` or ``final``."""
    if answer.error is not None:
        return answer.request_id, answer.error.code
    return answer.request_id, "audio" if answer.response is not None else "final"
