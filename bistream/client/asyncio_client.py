"""The same session for programs with an event loop:

    client = AsyncBistreamClient("localhost:8001")
    async with client.start(reference_wav=samples_16k, reference_text="What is said in it.") as session:
        asyncio.create_task(feed(session))   # await session.push_text("Hello "); await session.end_text("world.")
        async for chunk in session:
            play(chunk.waveform)             # float32, 24 kHz

Verbs, arguments and errors are those of ``client.py``; a session belongs to the event loop in which it was entered.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any

import grpc
from tritonclient.grpc import InferResult, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from bistream.client.connection import INSECURE, ClientSecurity
from bistream.client.exchange import Chunk, Heard, Request, SessionExchange
from bistream.client.known_voices import KnownVoices
from bistream.client.opening import SessionStarts
from bistream.client.server_errors import server_error
from bistream.client.translation import infer_request, stream_error, to_bytes
from bistream.errors import CancelledError
from bistream.wire import COSYVOICE2_BISTREAM

_CHANNEL_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
_CLOSED = "The session is over; start another one for more text."


class AsyncBistreamClient(SessionStarts["AsyncClientSession"]):
    """The address of a server. Every session has its own gRPC stream, which ends with it."""

    def __init__(
        self,
        address: str = "localhost:8001",
        model_name: str = COSYVOICE2_BISTREAM.name,
        silence_timeout_s: float = 60.0,
        security: ClientSecurity = INSECURE,
        sends_hashes: bool = True,
        keeps_channel: bool = False,
    ) -> None:
        """As ``BistreamClient``. keeps_channel: all sessions share one connection, which ``close`` ends; else each makes its own."""
        self.address = address
        self.model_name = model_name
        self.silence_timeout_s = silence_timeout_s
        self.security = security
        self.known_voices = KnownVoices() if sends_hashes else None
        self._keeps_channel = keeps_channel
        self._channel: grpc.aio.Channel | None = None

    def open_channel(self) -> grpc.aio.Channel:
        """Raises ``OSError`` where a file of the TLS options cannot be read."""
        credentials = self.security.grpc_credentials()
        if credentials is None:
            return grpc.aio.insecure_channel(self.address, options=_CHANNEL_OPTIONS)
        return grpc.aio.secure_channel(self.address, credentials, options=_CHANNEL_OPTIONS)

    def channel(self) -> grpc.aio.Channel:
        """The shared one where it is kept, else a new one. Call it in the event loop."""
        if not self._keeps_channel:
            return self.open_channel()
        self._channel = self._channel or self.open_channel()
        return self._channel

    async def release(self, channel: grpc.aio.Channel) -> None:
        """A session needs its channel no longer."""
        if channel is not self._channel:
            await channel.close()

    async def close(self) -> None:
        """The shared connection, with all its sessions. Idempotent."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    def _open(self, exchange: SessionExchange, start: dict[str, Any]) -> AsyncClientSession:
        """It begins where it is entered (``async with``)."""
        return AsyncClientSession(self, exchange, start)


class AsyncClientSession:
    """An asynchronous context manager and iterator. Any error ends the session for the client."""

    def __init__(self, client: AsyncBistreamClient, exchange: SessionExchange, start: dict[str, Any]) -> None:
        self.session_id = exchange.session_id
        self.silence_timeout_s = client.silence_timeout_s
        self._client = client
        self._exchange = exchange
        self._start = start
        self._requests: asyncio.Queue[Any] = asyncio.Queue()  # messages of the protocol; None: no more
        self._events: asyncio.Queue[Chunk | BaseException | None] = asyncio.Queue()  # None: the session has ended normally
        self._channel: Any = None
        self._call: Any = None
        self._reader: asyncio.Task[None] | None = None

    async def __aenter__(self) -> AsyncClientSession:
        self._channel = self._client.channel()
        self._put(self._exchange.start(self._start))
        stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._call = stub.ModelStreamInfer(self._written(), metadata=tuple(self._client.security.headers().items()))
        self._reader = asyncio.create_task(self._read(self._call))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    @property
    def heard(self) -> Heard | None:
        """How much of the text was heard when the cancel arrived: known once the iteration has ended with ``CancelledError``."""
        return self._exchange.heard

    async def push_text(self, piece: str | bytes) -> None:
        """Send text, cut anywhere (bytes: even inside a character). Raises the session's error, ``CancelledError`` if it ended normally."""
        self._send({"target_text": to_bytes(piece), "is_start": False, "is_end": False})

    async def end_text(self, piece: str | bytes = b"") -> None:
        """Send the last piece; the rest is spoken and the iteration ends."""
        self._send({"target_text": to_bytes(piece), "is_start": False, "is_end": True})

    async def cancel(self) -> None:
        """Stop speaking (barge-in). The iteration ends with ``CancelledError``; audio that has arrived can still be iterated."""
        self._send({"is_cancel": True})

    def _send(self, values: dict[str, Any]) -> None:
        if self._reader is None:
            raise CancelledError(_CLOSED, self.session_id)
        self._put(self._exchange.later(values))

    def _put(self, request: Request) -> None:
        self._requests.put_nowait(infer_request(self._client.model_name, request.request_id, request.values, request.parameters))

    async def _written(self) -> AsyncIterator[Any]:
        while (request := await self._requests.get()) is not None:
            yield request

    async def _read(self, call: Any) -> None:
        exchange, address = self._exchange, self._client.address
        try:
            async for answer in call:
                if answer.error_message:
                    for request in exchange.on_error(server_error(answer.error_message)):
                        self._put(request)
                elif (chunk := exchange.on_result(InferResult(answer.infer_response))) is not None:
                    self._events.put_nowait(chunk)
                if exchange.is_over:
                    break
        except grpc.RpcError as error:
            exchange.end(stream_error(InferenceServerException(msg=error.details(), status=str(error.code())), address))
        finally:
            exchange.end(ConnectionError(f"The server at {address} closed the stream before the session had ended."))
            self._events.put_nowait(exchange.failure)

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        """Audio as it arrives, until the session ends. Raises ``BistreamError``, ``ConnectionError`` and ``TimeoutError``."""
        while (event := await self._next_event()) is not None:
            if isinstance(event, BaseException):
                raise event
            yield event

    async def _next_event(self) -> Chunk | BaseException | None:
        limit_s = self.silence_timeout_s
        while True:
            quiet_s = time.monotonic() - self._exchange.last_event_at
            try:
                return await asyncio.wait_for(self._events.get(), max(0.01, limit_s - quiet_s))
            except TimeoutError:
                if time.monotonic() - self._exchange.last_event_at >= limit_s:
                    raise TimeoutError(f"No response from {self._client.address} for {limit_s:g} s.") from None

    async def wait_over(self) -> None:
        """Until the server has ended the session, normally or not; audio that comes meanwhile can still be iterated."""
        if self._reader is not None:
            await asyncio.wait([self._reader])

    async def close(self) -> None:
        """Close the stream, which cancels a session that is not over. Idempotent."""
        reader, self._reader = self._reader, None
        if reader is None:
            return
        self._exchange.end(CancelledError("The connection was closed.", self.session_id))
        self._requests.put_nowait(None)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        self._events.put_nowait(self._exchange.failure)  # where the reader had not begun, nobody else wakes the iteration
        if self._exchange.failure is not None:
            self._call.cancel()  # a shared channel does not end it; after a normal end the half-closed stream ends by itself
        await self._client.release(self._channel)
