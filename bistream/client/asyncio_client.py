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
from collections import deque
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from bistream.client.channels import INFER, Channels
from bistream.client.connection import INSECURE, ClientSecurity
from bistream.client.exchange import Chunk, Heard, Request, SessionExchange
from bistream.client.known_voices import KnownVoices
from bistream.client.messages import RequestMessages, Result
from bistream.client.opening import SessionStarts, later_piece
from bistream.client.server_errors import SlowReaderError, server_error
from bistream.client.translation import call_error
from bistream.contract.audio import UPSTREAM_SAMPLE_RATE, sample_rate_of
from bistream.contract.fields import COSYVOICE2_BISTREAM
from bistream.errors import CancelledError, EngineError

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
        max_unread_s: float | None = None,
    ) -> None:
        """As ``BistreamClient``. keeps_channel: sessions share connections, which ``close`` ends; else each makes its own. max_unread_s: of
        audio that a session keeps for a program which does not iterate, then it ends with ``SlowReaderError``; None: any amount."""
        self.address = address
        self.model_name = model_name
        self.silence_timeout_s = silence_timeout_s
        self.security = security
        self.max_unread_s = max_unread_s
        self.known_voices = KnownVoices() if sends_hashes else None
        self.channels = Channels(address, security, keeps_channel)
        self.told_sample_rate: int | None = None  # None: not asked yet

    def channel(self) -> grpc.aio.Channel:
        """One of the shared ones where they are kept, else a new one. Call it in the event loop. Raises ``OSError`` where a file of the
        TLS options cannot be read."""
        return self.channels.one()

    async def ask(self, method: str, request: Any, response_type: Any, timeout_s: float) -> Any:
        """A call of the server with one question: its first answer. Raises ``BistreamError``, ``ConnectionError`` and ``TimeoutError``."""
        return await self.channels.ask(method, request, response_type, timeout_s)

    async def sample_rate(self) -> int:
        """Samples per second of the server's audio, which it is asked once. Raises as ``ask`` does, and ``ValueError``."""
        if self.told_sample_rate is None:
            question = service_pb2.ModelConfigRequest(name=self.model_name)
            config = (await self.ask("ModelConfig", question, service_pb2.ModelConfigResponse, self.silence_timeout_s)).config
            self.told_sample_rate = sample_rate_of({name: parameter.string_value for name, parameter in config.parameters.items()})
        return self.told_sample_rate

    async def close(self) -> None:
        """The shared connections, with all their sessions. Idempotent."""
        await self.channels.close()

    def _open(self, exchange: SessionExchange, start: dict[str, Any]) -> AsyncClientSession:
        """It begins where it is entered (``async with``)."""
        return AsyncClientSession(self, exchange, start)


class AsyncClientSession:
    """An asynchronous context manager and iterator. Any error ends the session for the client.

    metadata: of the call, beside the client's; it may be changed until the session is entered."""

    def __init__(self, client: AsyncBistreamClient, exchange: SessionExchange, start: dict[str, Any]) -> None:
        self.session_id = exchange.session_id
        self.silence_timeout_s = client.silence_timeout_s
        self.metadata: dict[str, str] = {}
        self._client = client
        self._exchange = exchange
        self._start = start
        self._messages = RequestMessages(client.model_name)
        self._requests: asyncio.Queue[bytes | None] = asyncio.Queue()  # None: no more
        self._chunks: deque[Chunk] = deque()
        self._unread = 0  # samples of the chunks
        self._changed = asyncio.Event()
        self._channel: Any = None
        self._call: Any = None
        self._reader: asyncio.Task[None] | None = None

    async def __aenter__(self) -> AsyncClientSession:
        """Never waits: what the server says, and whether there is one, the iteration tells."""
        self._channel = self._client.channel()
        self._put(self._exchange.start(self._start))
        metadata = {**self._client.channels.headers, **self.metadata}
        self._call = self._channel.stream_stream(INFER)(self._written(), metadata=tuple(metadata.items()))
        self._reader = asyncio.create_task(self._read(self._call))
        self._client.channels.entered(self._channel, self._reader)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    @property
    def heard(self) -> Heard | None:
        """How much of the text was heard when the cancel arrived: known once the iteration has ended with ``CancelledError``."""
        return self._exchange.heard

    def put_text(self, piece: str | bytes, is_end: bool = False, speed: float | None = None) -> None:
        """``push_text``, or with is_end ``end_text``, for code that is no coroutine."""
        self._send(later_piece(piece, is_end, speed))

    async def push_text(self, piece: str | bytes, speed: float | None = None) -> None:
        """Send text, cut anywhere (bytes: even inside a character). speed: of what is spoken from here on; None: as before. Raises the
        session's error, ``CancelledError`` if it ended normally."""
        self.put_text(piece, speed=speed)

    async def end_text(self, piece: str | bytes = b"", speed: float | None = None) -> None:
        """Send the last piece; the rest is spoken and the iteration ends."""
        self.put_text(piece, is_end=True, speed=speed)

    async def cancel(self) -> None:
        """Stop speaking (barge-in). The iteration ends with ``CancelledError``; audio that has arrived can still be iterated."""
        self._send({"is_cancel": True})

    def _send(self, values: dict[str, Any]) -> None:
        if self._reader is None:
            raise CancelledError(_CLOSED, self.session_id)
        self._put(self._exchange.later(values))

    def _put(self, request: Request) -> None:
        self._requests.put_nowait(self._messages.encoded(request))

    async def _written(self) -> AsyncIterator[bytes]:
        while (request := await self._requests.get()) is not None:
            yield request

    async def _read(self, call: Any) -> None:
        """Until the server has ended the stream, which it does behind the last answer once nothing more is to come from here."""
        exchange, address = self._exchange, self._client.address
        try:
            async for data in call:
                if not exchange.is_over:
                    self._take(data)
        except grpc.RpcError as error:
            exchange.end(call_error(error, address))
        finally:  # a status CANCELLED of the server looks like a cancel of this task
            exchange.end(ConnectionError(f"The server at {address} closed the stream before the session had ended."))
            self._changed.set()

    def _take(self, data: bytes) -> None:
        exchange = self._exchange
        try:
            answer = service_pb2.ModelStreamInferResponse.FromString(data)
            if answer.error_message:
                for request in exchange.on_error(server_error(answer.error_message)):
                    self._put(request)
            elif (chunk := exchange.on_result(Result(answer.infer_response))) is not None:
                self._keep(chunk)
        except (DecodeError, ValueError, KeyError):
            self._give_up(EngineError("The server sent an answer that cannot be read; its version may not fit."))
        if exchange.is_over:
            self._requests.put_nowait(None)  # the server ends the half-closed stream
        self._changed.set()

    def _keep(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)
        self._unread += len(chunk.waveform)
        limit_s = self._client.max_unread_s
        if limit_s is not None and self._unread > limit_s * (self._client.told_sample_rate or UPSTREAM_SAMPLE_RATE):
            self._chunks.clear()
            self._give_up(SlowReaderError(f"More than {limit_s:g} s of audio were left unread; read it as it comes."))

    def _give_up(self, error: BaseException) -> None:
        """The server hears of it in this turn of the event loop, unless it has ended the session itself."""
        if self._exchange.end(error):
            self._call.cancel()

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
        limit_s = self.silence_timeout_s
        while not self._changed.is_set():
            quiet_s = time.monotonic() - self._exchange.last_event_at
            if quiet_s >= limit_s:
                raise TimeoutError(f"No response from {self._client.address} for {limit_s:g} s.")
            try:
                async with asyncio.timeout(max(0.01, limit_s - quiet_s)):
                    await self._changed.wait()
            except TimeoutError:
                pass  # pieces may have gone out meanwhile

    async def wait_over(self) -> None:
        """Until the server has ended the session, normally or not; audio that comes meanwhile can still be iterated."""
        if self._reader is not None:
            await asyncio.wait([self._reader])

    async def close(self) -> None:
        """Close the stream, which cancels a session that is not over. Idempotent."""
        reader, self._reader = self._reader, None
        if reader is None:
            return
        self._give_up(CancelledError("The connection was closed.", self.session_id))
        self._changed.set()
        await self._client.channels.left(self._channel, reader)
