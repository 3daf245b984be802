"""The stream to Triton of one session: under which id the session goes there, and how its stream ends.

A Triton stream that is reset in the moment of an answer can end the whole server. So a session that ends early is cancelled by a request,
and its stream is half-closed. It is reset where the model knows no cancel, or the request has no room, in a moment without answers; and
where the end does not come within ``CLOSE_TIMEOUT_S``.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

from bistream.wire import COSYVOICE2_BISTREAM
from gateway.messages import request_bytes
from gateway.requests import FrontDoorRequest, bytes_tensor, cancel_request
from gateway.upstream import UpstreamStream

CANCEL = "cancel"  # the id towards Triton of the request that ends a session early
QUIET_S = 0.02  # without a request or an answer, before a stream is reset
CLOSE_TIMEOUT_S = 5.0  # after the last audio or a cancel, for Triton to answer the rest and end the stream


class SessionStream:
    """The session has an id of the gate's, also where its client gave none. All methods run in the event loop."""

    def __init__(self, stream: UpstreamStream, model: str, consumer: Callable[[bytes], None]) -> None:
        """consumer: takes every response as it comes, and raises nothing."""
        self._stream = stream
        self._model = model
        self._own_id = bytes_tensor("session_id", secrets.token_hex(16).encode("ascii"))
        self._takes_id = model == COSYVOICE2_BISTREAM.name
        self._consumer = consumer
        self._write_lock = asyncio.Lock()
        self._deadline: asyncio.TimerHandle | None = None
        self._moved_at = 0.0  # when it last carried something, by the clock of the event loop
        stream.listen(self._on_response)

    async def write(self, request: FrontDoorRequest, request_id: str) -> None:
        """Returns when there is room for more. Raises ``UpstreamLost``."""
        tensors = {**request.tensors, "session_id": self._own_id} if self._takes_id else request.tensors
        data = request_bytes(request, request_id, tensors)
        async with self._write_lock:
            await self._stream.write(data)
        self._moved()

    async def wait(self) -> None:
        """Until the server has ended the stream properly. Raises ``UpstreamLost``."""
        await self._stream.wait()

    def finish(self) -> None:
        """No more requests. Idempotent."""
        self._stream.finish()

    def leave(self, is_unanswered: bool) -> None:
        """End it; what still comes does not count. is_unanswered: the session has not ended by itself."""
        self.limit_time()
        if is_unanswered and not self._ask_to_cancel():
            self._reset_when_quiet()
        else:
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

    def _moved(self) -> None:
        self._moved_at = asyncio.get_running_loop().time()

    def _ask_to_cancel(self) -> bool:
        """Whether the request is sent. It cannot be while another one waits for room."""
        if not self._takes_id or self._write_lock.locked():
            return False
        request = cancel_request(self._model)
        return self._stream.try_write(request_bytes(request, CANCEL, {**request.tensors, "session_id": self._own_id}))

    def _reset_when_quiet(self) -> None:
        """Within the time that the deadline leaves."""
        loop = asyncio.get_running_loop()
        rest_s = self._moved_at + QUIET_S - loop.time()
        if rest_s <= 0.0:
            self._stream.cancel()
        else:
            loop.call_later(rest_s, self._reset_when_quiet)
