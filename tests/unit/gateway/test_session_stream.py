"""A session's stream to Triton, over the gate's own HTTP/2: whole messages in their order and a quiet end, whoever vanishes.

Several clients of one API key write to the session. The test plays Triton, and gives room as it likes.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from bistream.errors import BistreamError
from gateway.conversation import Conversation
from gateway.http2.client import ClientConnection
from gateway.http2.frames import ErrorCode, Flag, Kind, Setting, frame, goaway, header_block, settings_frame, window_update
from gateway.keys import Keys
from gateway.messages import read_request
from gateway.requests import FrontDoorRequest
from gateway.session_stream import CANCEL, CLOSE_TIMEOUT_S, QUIET_S
from gateway.settings import Limits, UpstreamSettings
from gateway.upstream import Upstream
from tests.unit.gateway.fakes import FakeStream, House, answers, told
from tests.unit.gateway.requests import append, cancel, message, start
from tests.unit.gateway.requests import request as request_of
from tests.unit.gateway.wire import Wire, run, settle, wait
from tests.unit.gateway.wire import message as framed

KEY = "k" * 16
MESSAGE_HEAD_BYTES = 5
PLENTY = 10_000_000
RECORDING = [0.0] * 50_000  # 200 KB


@dataclass
class Received:
    """Of one stream, as Triton sees it: the bytes of its messages, and how it ended."""

    data: bytes = b""
    is_finished: bool = False
    is_reset: bool = False

    def messages(self) -> tuple[list[Any], bytes]:
        """Those that are whole, and the rest. Raises ``DecodeError``."""
        found: list[Any] = []
        rest = self.data
        while len(rest) >= MESSAGE_HEAD_BYTES and len(rest) >= MESSAGE_HEAD_BYTES + (size := int.from_bytes(rest[1:5], "big")):
            assert rest[0] == 0
            found.append(service_pb2.ModelInferRequest.FromString(rest[MESSAGE_HEAD_BYTES : MESSAGE_HEAD_BYTES + size]))
            rest = rest[MESSAGE_HEAD_BYTES + size :]
        return found, rest

    @property
    def ids(self) -> list[str]:
        return [one.id for one in self.messages()[0]]


class Scene:
    """A gate with API keys over a connection to a Triton that the test plays. room: of each stream, in bytes."""

    def __init__(self, room: int, limits: Limits | None = None) -> None:
        self.house = House(limits, Keys({KEY: "anna"}))
        self.upstream = Upstream(UpstreamSettings())
        connection = ClientConnection("triton", self.upstream._on_lost)
        self.upstream._connection, self.upstream.is_ready = connection, True
        self.house.gate.upstream = self.upstream
        self.connection = connection
        self.wire = Wire(connection)
        self.wire.send(settings_frame({Setting.INITIAL_WINDOW_SIZE: room}))
        self.streams: dict[int, Received] = {}

    def client(self) -> Conversation:
        return self.house.client(key=KEY)

    def received(self, stream: int = 1) -> Received:
        for one in self.wire.frames():
            of = self.streams.setdefault(one.stream, Received())
            if one.kind == Kind.DATA:
                assert not of.is_finished and not of.is_reset
                of.data += one.payload
                of.is_finished = bool(one.flags & Flag.END_STREAM)
            elif one.kind == Kind.RST_STREAM:
                of.is_reset = True
        return self.streams.setdefault(stream, Received())

    def give_room(self, room: int = PLENTY, stream: int = 1) -> None:
        self.wire.send(window_update(stream, room))

    def answer(self, response: Any, stream: int = 1) -> None:
        data = framed(response.SerializeToString())
        self.wire.send(*(frame(Kind.DATA, 0, stream, data[at : at + 16_384]) for at in range(0, len(data), 16_384)))

    def begin_answers(self, stream: int = 1) -> None:
        fields = [(b":status", b"200"), (b"content-type", b"application/grpc")]
        self.wire.send(frame(Kind.HEADERS, Flag.END_HEADERS, stream, header_block(fields)))

    def end(self, stream: int = 1) -> None:
        self.wire.send(frame(Kind.HEADERS, Flag.END_HEADERS | Flag.END_STREAM, stream, header_block([(b"grpc-status", b"0")])))


def with_recording(**values: Any) -> FrontDoorRequest:
    return read_request(message(target_text="y", is_end=False, reference_wav=RECORDING, **values), Limits())


async def vanish(client: Conversation, *tasks: asyncio.Task[None]) -> None:
    """As the door does it: what reads for the client is cancelled in the midst of its waiting."""
    for task in tasks:
        task.cancel()
    client.close()
    await asyncio.gather(*tasks, return_exceptions=True)
    await settle()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 3), st.integers(0, 3_000)),
        st.tuples(st.just("cancel"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("vanish"), st.integers(1, 3), st.just(0)),
        st.tuples(st.just("room"), st.just(0), st.integers(1, 4_000)),
        st.tuples(st.just("wait"), st.just(0), st.integers(0, 2)),
    ),
    max_size=25,
)


@settings(max_examples=150, deadline=None)
@given(STEPS, st.booleans(), st.integers(1, 3_000))
def test_triton_reads_whole_messages_in_their_order_whoever_vanishes(steps: list[tuple[str, int, int]], leaves: bool, room: int) -> None:
    """The last room is ample: then everything has come, and where the home has left, the cancel after it and the proper end."""

    async def test() -> None:
        scene = Scene(room=1_000)
        clients = [scene.client() for _ in range(4)]
        tasks: list[list[asyncio.Task[None]]] = [[] for _ in clients]
        sent = ["hello"]
        tasks[0].append(asyncio.create_task(clients[0].send(start("mine", sent[0]))))
        await settle()
        scene.give_room(room)
        for kind, who, size in steps:
            if kind == "vanish":
                await vanish(clients[who], *tasks[who])
                clients[who], tasks[who] = scene.client(), []
            elif kind == "room":
                scene.give_room(size)
            elif kind == "append":
                sent.append(f"{len(sent)} " + "x" * size)
                tasks[who].append(asyncio.create_task(clients[who].send(append("mine", sent[-1]))))
            elif kind == "cancel":
                sent.append("")
                tasks[who].append(asyncio.create_task(clients[who].send(cancel("mine"))))
            await settle(size if kind == "wait" else 12)
        has_begun = bool(scene.received().messages()[0])
        if leaves:
            await vanish(clients[0], *tasks[0])
        scene.give_room()
        await settle()
        of = scene.received()
        found, rest = of.messages()
        texts = [b"" if one.id == CANCEL else text_of(one) for one in found]
        asked = [one.id for one in found[len(sent) :]]
        if not has_begun and leaves:
            assert of.is_reset
        else:
            assert texts[: len(sent)] == [text.encode() for text in sent] and not rest and not of.is_reset
            assert of.is_finished == leaves and asked == ([CANCEL] if leaves else [])
        for client, own in zip(clients, tasks, strict=True):
            await vanish(client, *own)
        scene.wire.transport.close()
        await settle()
        assert scene.house.gate.admission.sessions == 0 and scene.house.gate.output_budget.used == 0

    run(test)


def text_of(one: Any) -> bytes:
    tensors = {tensor.name: raw for tensor, raw in zip(one.inputs, one.raw_input_contents, strict=True)}
    return bytes(tensors.get("target_text", b"\0" * 4)[4:])


def test_a_later_request_has_no_recording() -> None:
    """So only a start is large; the models refuse it too."""

    async def test() -> None:
        scene = Scene(PLENTY)
        client = scene.client()
        await client.send(start("mine", "x"))
        await client.send(with_recording(session_id="mine", is_start=False))
        await client.send(read_request(message(session_id="mine", is_start=False, is_end=False, source_wav=RECORDING), Limits()))
        refused = await answers(client, 4)
        assert [told(one)[1] for one in refused] == ["INVALID_INPUT", "final"] * 2
        await client.send(read_request(message(session_id="mine", is_cancel=True, reference_wav=RECORDING), Limits()))
        await settle()
        assert scene.received().ids == ["0", "1"] and len(scene.received().data) < 1_000
        assert {tensor.name for tensor in scene.received().messages()[0][-1].inputs} == {"is_cancel", "session_id"}
        await vanish(client)
        scene.wire.transport.close()

    run(test)


@pytest.mark.parametrize("model", ["cosyvoice2_bistream", "cosyvoice2"])
def test_a_start_that_has_not_reached_triton_is_taken_back_at_once(model: str) -> None:
    async def test() -> None:
        scene = Scene(room=1_000)
        client = scene.client()
        values: dict[str, Any] = {"session_id": "mine", "is_end": False} if model == "cosyvoice2_bistream" else {}
        whole = read_request(message(model, target_text="y", reference_wav=RECORDING, **values), Limits())
        task = asyncio.create_task(client.send(whole))
        await settle()
        assert not task.done() and 0 < len(scene.received().data) < 2_000
        await vanish(client, task)
        assert scene.received().is_reset and not scene.connection.streams
        scene.wire.transport.close()

    run(test)


def test_a_cancel_waits_for_room() -> None:
    """Uploads of others have used up what all streams share."""

    async def test() -> None:
        scene = Scene(PLENTY)
        client = scene.client()
        await client.send(start("mine", "x"))
        scene.connection.send_window = 0
        await vanish(client)
        await wait(1.0, 0.01)
        assert scene.received().ids == ["0"] and not scene.received().is_finished and not scene.received().is_reset
        scene.give_room(stream=0)
        await settle()
        assert scene.received().ids == ["0", CANCEL] and scene.received().is_finished and not scene.received().is_reset
        scene.wire.transport.close()

    run(test)


def test_a_session_that_fails_in_the_midst_of_a_request_ends_after_it() -> None:
    async def test() -> None:
        scene = Scene(room=1_000, limits=Limits(max_unread_audio_s=1))
        client = scene.client()
        await client.send(start("mine", "x"))
        task = asyncio.create_task(client.send(append("mine", "y" * 2_000)))
        await settle()
        assert not task.done()
        scene.begin_answers()
        response = FakeStream._response("0", False)
        response.infer_response.outputs.add(name="waveform", datatype="FP32", shape=[1, 1])
        response.infer_response.raw_output_contents.append(bytes(96_000 * 2))
        scene.answer(response)
        scene.answer(response)
        await settle()
        assert len(scene.house.gate.sessions) == 0 and not scene.received().is_finished
        scene.give_room()
        await settle()
        assert task.done()
        of = scene.received()
        assert of.ids == ["0", "1", CANCEL] and not of.messages()[1] and of.is_finished and not of.is_reset
        client.close()
        scene.wire.transport.close()

    run(test)


def test_where_the_model_knows_no_cancel_the_stream_is_reset_in_a_quiet_moment() -> None:
    async def test() -> None:
        scene = Scene(PLENTY)
        client = scene.client()
        await client.send(request_of("cosyvoice2", target_text="x"))
        await vanish(client)
        assert scene.received().ids == ["0"] and not scene.received().is_reset, "it has just carried a request"
        assert len(scene.house.gate.sessions) == 0
        await wait(2 * QUIET_S, QUIET_S / 4)
        assert scene.received().is_reset and not scene.received().is_finished
        scene.wire.transport.close()

    run(test)


def test_a_stream_that_does_not_end_is_reset_after_a_stop_that_sessions_survive() -> None:
    assert CLOSE_TIMEOUT_S > UpstreamSettings().max_silence_s

    async def test() -> None:
        scene = Scene(PLENTY)
        client = scene.client()
        await client.send(start("mine", "x"))
        await vanish(client)
        for _ in range(int(CLOSE_TIMEOUT_S) - 1):
            scene.give_room(1, stream=0)  # the connection is alive
            await wait(1.0, 0.25)
        assert scene.received().is_finished and not scene.received().is_reset
        await wait(2.0, 0.25)
        assert scene.received().is_reset and not scene.connection.streams
        scene.wire.transport.close()

    run(test)


def test_at_the_end_triton_has_time_to_answer_the_cancels() -> None:
    async def test() -> None:
        scene = Scene(PLENTY)
        client = scene.client()
        await client.send(start("mine", "x"))
        closing = asyncio.create_task(scene.house.gate.close())
        await settle()
        assert scene.received().ids == ["0", CANCEL] and scene.received().is_finished and not closing.done()
        scene.begin_answers()
        scene.end()
        await settle()
        assert closing.done() and not scene.received().is_reset

    run(test)


def test_at_the_end_a_silent_triton_is_not_waited_for() -> None:
    async def test() -> None:
        scene = Scene(PLENTY)
        client = scene.client()
        await client.send(start("mine", "x"))
        closing = asyncio.create_task(scene.house.gate.close())
        await settle()
        await wait(3.0, 0.25)
        assert closing.done() and scene.received().is_reset

    run(test)


def test_nothing_is_started_on_a_connection_that_triton_leaves() -> None:
    """Until the watch has connected again."""

    async def test() -> None:
        scene = Scene(PLENTY)
        client = scene.client()
        await client.send(start("first", "x"))
        scene.wire.send(goaway(1, ErrorCode.NO_ERROR))
        await client.send(start("second", "x", request_id="second"))
        taken = [told(one) for one in await answers(client, 2)]
        assert taken == [("second", "ENGINE_ERROR"), ("second", "final")] and len(scene.house.gate.sessions) == 1
        with pytest.raises(BistreamError, match="cannot be reached"):
            await scene.upstream.ask("ServerReady", service_pb2.ServerReadyRequest(), service_pb2.ServerReadyResponse)
        await vanish(client)
        scene.wire.transport.close()

    run(test)
