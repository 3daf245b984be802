"""The connections to one server: HTTP/2 in this event loop, made when they are needed. grpc's asyncio library would move every message
between three threads (docs/interfaces.md has what that costs)."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any

import grpc
from tritonclient.utils import InferenceServerException

from bistream.client.translation import no_answer, stream_error
from gateway.http2.client import CallFailed, ClientCall, ClientConnection, Tls, connect

SERVICE = "inference.GRPCInferenceService"
CALLS_PER_CONNECTION = 64  # far below what servers allow
CLOSE_TIMEOUT_S = 2.0


class Link:
    """metadata: of every call, such as the API key. tls: None: without it."""

    def __init__(self, address: str, metadata: Mapping[str, str] | None = None, tls: Tls | None = None) -> None:
        self.address = address
        self.tls = tls
        self._metadata = dict(metadata or {})
        self.connections: list[ClientConnection] = []
        self._attempt: asyncio.Task[ClientConnection] | None = None  # to connect; all who need a connection wait for the same one
        self._all_lost = asyncio.Event()

    async def call(self, method: str, metadata: Mapping[str, str] | None = None) -> ClientCall:
        """Begin a call. Raises ``ConnectionError`` where the server cannot be reached."""
        while (connection := self._free()) is None:
            await self._connected()
        fields = {**self._metadata, **(metadata or {})}
        return connection.call(f"/{SERVICE}/{method}", [(name.encode("ascii"), value.encode("latin-1")) for name, value in fields.items()])

    async def ask(self, method: str, request: Any, response_type: Any, timeout_s: float) -> Any:
        """One question. Raises ``ConnectionError``, ``TimeoutError`` and ``CallFailed``."""
        async with asyncio.timeout(timeout_s):
            call = await self.call(method)
            try:
                await call.write(request.SerializeToString())
                call.finish()
                answer = await call.read()
                while await call.read() is not None:
                    pass
            finally:
                call.cancel()
        return response_type.FromString(answer or b"")

    def _free(self) -> ClientConnection | None:
        usable = (one for one in self.connections if not one.is_leaving and not one.is_over())
        return next((one for one in usable if len(one.streams) < CALLS_PER_CONNECTION), None)

    async def _connected(self) -> None:
        """There is another connection. Raises ``ConnectionError``; the attempt goes on for the others where one no longer waits."""
        if self._attempt is None:
            self._attempt = asyncio.create_task(self._connect())
            self._attempt.add_done_callback(self._end_attempt)
        await asyncio.shield(self._attempt)

    def _end_attempt(self, attempt: asyncio.Task[ClientConnection]) -> None:
        self._attempt = None
        if not attempt.cancelled():
            attempt.exception()  # perhaps nobody waits for it any more

    async def _connect(self) -> ClientConnection:
        try:
            connection = await connect(self.address, self._lost, self.tls)
        except OSError as error:  # TimeoutError and ssl.SSLError are ones
            raise no_answer(self.address, _reason(error)) from None
        self.connections.append(connection)
        return connection

    def _lost(self, connection: ClientConnection) -> None:
        if connection in self.connections:
            self.connections.remove(connection)
        if not self.connections:
            self._all_lost.set()

    async def close(self) -> None:
        """With all calls."""
        if self._attempt is not None:
            await asyncio.wait([self._attempt])
        if not self.connections:
            return
        self._all_lost.clear()
        for connection in self.connections:
            connection.close()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._all_lost.wait()
        except TimeoutError:  # a server that takes nothing
            for connection in list(self.connections):
                connection.abort()


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message.rstrip('.')}"
    return (error.strerror or str(error)).rstrip(".")


def error_of(failed: CallFailed, address: str) -> BaseException:
    """As the client library says it."""
    is_bare = failed.status == grpc.StatusCode.UNAVAILABLE and not failed.details
    words = failed.details or (f"the stream to {address} broke" if is_bare else failed.status.name)
    return stream_error(InferenceServerException(msg=words, status=str(failed.status)), address)
