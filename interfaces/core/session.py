"""One session of a server on a stream of its own: ``bistream.client.asyncio_client.AsyncClientSession`` on this process's own connections.

A message is sent, and an answer taken, in the very turn of the event loop in which it comes, without a task or a queue between.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from bistream.client.exchange import Chunk, Request, SessionExchange
from bistream.client.server_errors import server_error
from bistream.client.translation import infer_request, raw_input, to_bytes
from bistream.errors import CancelledError, EngineError
from bistream.rates import SAMPLE_RATE
from bistream.wire import COSYVOICE2_BISTREAM
from gateway.http2.client import CallFailed, ClientCall
from interfaces.core.errors import SlowReaderError
from interfaces.core.link import error_of

SILENCE_TIMEOUT_S = 60.0
MAX_UNREAD_S = 90.0  # of audio kept for a client that reads more slowly than it is made, as the gate's; the models run 60 s ahead
_NUMPY_TYPES: dict[str, Any] = {"FP32": np.float32, "INT32": np.int32}


class ServerSession:
    """An asynchronous context manager and iterator, owned by one event loop. Any error ends the session."""

    def __init__(self, call: ClientCall, address: str, exchange: SessionExchange, start: dict[str, Any]) -> None:
        """call: of ``ModelStreamInfer``; the session ends it."""
        self.session_id = exchange.session_id
        self._address = address
        self._exchange = exchange
        self._start = start
        self._call: ClientCall | None = call
        self._outbox: deque[bytes] = deque()  # what has no room on the connection
        self._writer: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._messages = RequestMessages()
        self._chunks: deque[Chunk] = deque()
        self._unread = 0  # samples of the chunks
        self._changed = asyncio.Event()

    async def __aenter__(self) -> ServerSession:
        """Never waits."""
        assert self._call is not None, "a session is entered once"
        self._call.listen(self._take)
        self._put(self._exchange.start(self._start))
        self._ending = asyncio.create_task(self._watch_end(self._call))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def push_text(self, piece: str) -> None:
        """Raises the session's error, ``CancelledError`` if it has ended."""
        self._put(self._exchange.later({"target_text": to_bytes(piece), "is_start": False, "is_end": False}))

    def end_text(self) -> None:
        """As ``push_text``."""
        self._put(self._exchange.later({"target_text": b"", "is_start": False, "is_end": True}))

    def _put(self, request: Request) -> None:
        data = self._messages.encoded(request)
        if self._call is None:
            raise CancelledError("The session is over; start another one for more text.", self._exchange.session_id)
        if self._writer is None and self._call.try_write(data):
            return
        self._outbox.append(data)
        if self._writer is None:
            self._writer = asyncio.create_task(self._write(self._call))

    async def _write(self, call: ClientCall) -> None:
        try:
            while self._outbox:
                await call.write(self._outbox.popleft())
        except CallFailed:
            self._outbox.clear()  # the reading side says why
        finally:
            self._writer = None

    def _take(self, data: bytes) -> None:
        """A message of the server. Raises nothing: the connection belongs to other sessions, too."""
        exchange = self._exchange
        if exchange.is_over:
            return
        try:
            answer = service_pb2.ModelStreamInferResponse.FromString(data)
            if answer.error_message:
                for request in exchange.on_error(server_error(answer.error_message)):
                    self._put(request)
            elif (chunk := exchange.on_result(_Result(answer.infer_response))) is not None:
                self._keep(chunk)
        except (DecodeError, ValueError, KeyError):
            exchange.end(EngineError("The speech server sent an answer that cannot be read; its version may not fit."))
        self._changed.set()

    def _keep(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)
        self._unread += len(chunk.waveform)
        if self._unread > MAX_UNREAD_S * SAMPLE_RATE:
            self._chunks.clear()
            self._exchange.end(SlowReaderError(f"The client left more than {MAX_UNREAD_S:g} s of audio unread; read it as it comes."))
            self.close()

    async def _watch_end(self, call: ClientCall) -> None:
        try:
            await call.read()
            self._exchange.end(ConnectionError(f"The server at {self._address} closed the stream before the session had ended."))
        except CallFailed as failed:
            self._exchange.end(error_of(failed, self._address))
        self._changed.set()

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        """Audio as it arrives, until the session ends. Raises ``BistreamError``, ``ConnectionError`` and ``TimeoutError``."""
        while True:
            while self._chunks:
                chunk = self._chunks.popleft()
                self._unread -= len(chunk.waveform)
                yield chunk
            if self._exchange.is_over:
                break
            self._changed.clear()
            await self._wait_for_change()
        if self._exchange.failure is not None:
            raise self._exchange.failure

    async def _wait_for_change(self) -> None:
        while not self._changed.is_set():
            quiet_s = time.monotonic() - self._exchange.last_event_at
            if quiet_s >= SILENCE_TIMEOUT_S:
                raise TimeoutError(f"No response from {self._address} for {SILENCE_TIMEOUT_S:g} s.")
            try:
                async with asyncio.timeout(max(0.01, SILENCE_TIMEOUT_S - quiet_s)):
                    await self._changed.wait()
            except TimeoutError:
                pass  # pieces may have gone out meanwhile

    def close(self) -> None:
        """End the stream, which cancels a session that is not over. Idempotent; the server hears of it in this turn of the event loop."""
        call, self._call = self._call, None
        if call is None:
            return
        was_over = self._exchange.is_over and self._exchange.failure is None
        self._exchange.end(CancelledError("The connection was closed.", self._exchange.session_id))
        self._changed.set()
        if self._writer is not None:
            self._writer.cancel()
        if was_over:
            call.finish()  # the server ends the stream then; ``_watch_end`` takes its last word
        else:
            call.cancel()


class RequestMessages:
    """Requests of one session as bytes of the protocol. Its pieces differ in little, so the rest is made once: it would take two thirds of
    the time of a piece."""

    def __init__(self) -> None:
        self._head = b""  # what pieces with the same inputs and parameters have in common
        self._head_of: tuple[Mapping[str, str], list[str]] | None = None

    def encoded(self, request: Request) -> bytes:
        values, parameters = request.values, request.parameters
        if values.get("is_start"):
            data: bytes = infer_request(COSYVOICE2_BISTREAM.name, request.request_id, values, parameters).SerializeToString()
            return data
        if self._head_of != (parameters, list(values)):
            # Only the start's last answer means something, so that of a piece is not asked for.
            head = infer_request(COSYVOICE2_BISTREAM.name, "", values, parameters, wants_empty_final=False)
            head.ClearField("raw_input_contents")
            self._head, self._head_of = head.SerializeToString(), (dict(parameters), list(values))
        # Two messages one after the other are the message in which they are merged (protobuf's encoding).
        contents = [raw_input(name, value)[1] for name, value in values.items()]
        rest: bytes = service_pb2.ModelInferRequest(id=request.request_id, raw_input_contents=contents).SerializeToString()
        return self._head + rest


class _Result:
    """The outputs of one answer, as ``SessionExchange`` reads them."""

    def __init__(self, response: Any) -> None:
        self._response = response
        named = zip(response.outputs, response.raw_output_contents, strict=True)
        self._tensors = {tensor.name: (tensor.datatype, raw) for tensor, raw in named}

    def get_response(self) -> Any:
        return self._response

    def as_numpy(self, name: str) -> NDArray[Any] | None:
        found = self._tensors.get(name)
        return None if found is None else np.frombuffer(found[1], _NUMPY_TYPES[found[0]])
