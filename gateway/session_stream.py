"""The stream to Triton of one session: under which id the session goes there, and how its stream ends.

A Triton stream that is reset in the moment of an answer can end the whole server. So a session that ends early is cancelled by a request,
and its stream is half-closed. It is reset where nothing of it has reached Triton yet; where the model knows no cancel, in a moment without
answers; and where the end does not come within ``CLOSE_TIMEOUT_S``.

Several clients of one API key may write to it, and any of them may vanish at any moment. What is begun is sent to its end all the same:
the next message would be parsed as the rest of a truncated one, and nobody has checked what is in it then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bistream.contract.fields import COSYVOICE2_BISTREAM
from gateway.earlier import new_id
from gateway.messages import request_bytes
from gateway.requests import FrontModelRequest, Tensor, bytes_tensor, cancel_request
from gateway.upstream import UpstreamStream

CANCEL = "cancel"  # the id towards Triton of the request that ends a session early
QUIET_S = 0.02  # without a request or an answer, before a stream is reset
CLOSE_TIMEOUT_S = 15.0  # after the last audio or a cancel, for Triton to end the stream; longer than a stop of it that sessions survive


class SessionStream:
    """The session has an id of the gate's, also where its client gave none. All methods run in the event loop."""

    def __init__(self, stream: UpstreamStream, model: str, consumer: Callable[[bytes], None]) -> None:
        """consumer: takes every response as it comes, and raises nothing."""
        self._stream = stream
        self._model = model
        self.own_id = new_id()
        self._takes_id = model == COSYVOICE2_BISTREAM.name
        self._consumer = consumer
        self._turn = asyncio.Lock()  # of the messages that wait for room, first come, first served
        self._unsent: set[asyncio.Task[None]] = set()
        self._has_begun = False  # to send
        self._is_finished = False
        self._deadline: asyncio.TimerHandle | None = None
        self._moved_at = 0.0  # when it last carried something, by the clock of the event loop

    async def write(self, request: FrontModelRequest, request_id: str) -> None:
        """Returns when there is room for more. Raises ``UpstreamLost``. Who no longer waits for it does not take it back."""
        tensors = {**request.tensors, "session_id": self._own_id()} if self._takes_id else request.tensors
        await asyncio.shield(self._send(request_bytes(request, request_id, tensors)))

    async def receive(self) -> None:
        """Take responses until the server has ended the stream properly. Raises ``UpstreamLost``."""
        await self._stream.receive(self._on_response)

    def finish(self) -> None:
        """No more requests than those that wait for room. Idempotent."""
        self._is_finished = True
        if not self._unsent:
            self._stream.finish()

    def leave(self, is_unanswered: bool) -> None:
        """End it; what still comes does not count. is_unanswered: the session has not ended by itself."""
        if not self._has_begun:
            self.close()
            return
        self.limit_time()
        if is_unanswered and not self._takes_id:
            self._reset_when_quiet()
            return
        if is_unanswered:
            request = cancel_request(self._model)
            self._send(request_bytes(request, CANCEL, {**request.tensors, "session_id": self._own_id()}))
        self.finish()

    def limit_time(self) -> None:
        """Triton has a little time to end the stream."""
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().call_later(CLOSE_TIMEOUT_S, self._stream.cancel)

    def close(self) -> None:
        """It has ended, or must. Idempotent."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._stream.cancel()

    def _on_response(self, data: bytes) -> None:
        self._moved()
        self._consumer(data)

    def _own_id(self) -> Tensor:
        return bytes_tensor("session_id", self.own_id.encode("ascii"))

    def _moved(self) -> None:
        self._moved_at = asyncio.get_running_loop().time()

    def _send(self, data: bytes) -> asyncio.Task[None]:
        """After what waits for room. The task that does it: who waits for it may be cancelled, and the message must go to its end."""
        task = asyncio.create_task(self._send_in_turn(data))
        self._unsent.add(task)
        task.add_done_callback(self._end_sending)
        return task

    async def _send_in_turn(self, data: bytes) -> None:
        async with self._turn:
            self._has_begun = True
            await self._stream.write(data)
        self._moved()

    def _end_sending(self, task: asyncio.Task[None]) -> None:
        self._unsent.discard(task)
        if not task.cancelled():
            task.exception()  # nobody may wait for it any more
        if self._is_finished and not self._unsent:
            self._stream.finish()

    def _reset_when_quiet(self) -> None:
        """Within the time that the deadline leaves."""
        loop = asyncio.get_running_loop()
        rest_s = self._moved_at + QUIET_S - loop.time()
        if rest_s <= 0.0:
            self._stream.cancel()
        else:
            loop.call_later(rest_s, self._reset_when_quiet)
