"""The link to Triton: one HTTP/2 connection, a stream on it for each session, and a watch on the server's readiness. Raw bytes only.

Nothing of a client's call but checked bytes goes through here: no header, no deadline, no compression.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

import grpc
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from bistream.errors import ERRORS_BY_CODE, BistreamError, EngineError
from bistream.wire import parse_error
from gateway.http2.client import CallFailed, ClientCall, ClientConnection, connect
from gateway.refusals import WrongCallError
from gateway.settings import UpstreamSettings

logger = logging.getLogger(__name__)

SERVICE = "inference.GRPCInferenceService"
UNREACHABLE = "The speech server cannot be reached at the moment; try again in a few seconds."
LOST = "The speech server was lost; start the session again."
FAILED = "The speech server failed; try again."
UNARY_TIMEOUT_S = 10.0


class UpstreamLost(Exception):
    """The stream to Triton has broken, or could not be opened."""


class UpstreamStream(Protocol):
    """One ``ModelStreamInfer`` call."""

    def listen(self, consumer: Callable[[bytes], None]) -> None:
        """Have every response taken by ``consumer`` as it comes. It raises nothing."""

    async def wait(self) -> None:
        """Until the server has ended the stream properly. Raises ``UpstreamLost``."""

    async def write(self, data: bytes) -> None:
        """Returns when there is room for more. Raises ``UpstreamLost``."""

    def try_write(self, data: bytes) -> bool:
        """Send it if all of it has room now. False: nothing was sent. Not while ``write`` is under way."""

    def finish(self) -> None:
        """No more requests."""

    def cancel(self) -> None:
        """Idempotent, and without effect on a stream that has ended."""


class _Stream:
    """call: ``None`` where there is no connection."""

    def __init__(self, call: ClientCall | None) -> None:
        self._call = call

    def listen(self, consumer: Callable[[bytes], None]) -> None:
        if self._call is not None:
            self._call.listen(consumer)

    async def wait(self) -> None:
        if self._call is None:
            raise UpstreamLost
        try:
            await self._call.read()
        except CallFailed:
            raise UpstreamLost from None

    async def write(self, data: bytes) -> None:
        if self._call is None:
            raise UpstreamLost
        try:
            await self._call.write(data)
        except CallFailed:
            raise UpstreamLost from None

    def try_write(self, data: bytes) -> bool:
        return self._call is not None and self._call.try_write(data)

    def finish(self) -> None:
        if self._call is not None:
            self._call.finish()

    def cancel(self) -> None:
        if self._call is not None:
            self._call.cancel()


class Upstream:
    """``watch`` must run as a task: it makes the connection, and makes it again when it is lost.

    on_silence: called once Triton has not answered for ``max_silence_s``.
    """

    def __init__(self, settings: UpstreamSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._connection: ClientConnection | None = None
        self.is_ready = False
        self.on_silence: Callable[[], None] = lambda: None

    @property
    def _usable(self) -> ClientConnection | None:
        """``None`` also from Triton's GOAWAY until the watch has connected anew: a call would never be answered."""
        return None if self._connection is None or self._connection.is_leaving else self._connection

    def open_stream(self) -> UpstreamStream:
        """Never waits: that Triton cannot be reached shows when the stream is read."""
        connection = self._usable
        return _Stream(None if connection is None else connection.call(f"/{SERVICE}/ModelStreamInfer"))

    async def infer(self, data: bytes) -> Any:
        """One ``ModelInfer`` call: a ``ModelInferResponse``. Raises ``BistreamError``. Cancelling the task cancels the call."""
        return await self._unary("ModelInfer", data, service_pb2.ModelInferResponse, None)

    async def ask(self, method: str, request: Any, response_type: Any) -> Any:
        """A question about the server or a model. Raises ``BistreamError``."""
        return await self._unary(method, request.SerializeToString(), response_type, UNARY_TIMEOUT_S)

    async def _unary(self, method: str, data: bytes, response_type: Any, timeout_s: float | None) -> Any:
        try:
            return response_type.FromString(await self._call(method, data, timeout_s))
        except (DecodeError, TimeoutError):
            raise EngineError(FAILED) from None
        except CallFailed as failure:
            raise _public_failure(failure) from None

    async def _call(self, method: str, data: bytes, timeout_s: float | None) -> bytes:
        """Raises ``CallFailed`` and ``TimeoutError``."""
        connection = self._usable
        if connection is None:
            raise CallFailed(grpc.StatusCode.UNAVAILABLE)
        call = connection.call(f"/{SERVICE}/{method}")
        try:
            async with asyncio.timeout(timeout_s):
                await call.write(data)
                call.finish()
                answer = await call.read()
                while await call.read() is not None:
                    pass
            return answer or b""
        finally:
            call.cancel()

    async def watch(self) -> None:
        """Keep the connection, and ``is_ready`` true to the server's own word, and the hold file's. Runs until it is cancelled."""
        settings, silent_s, failures = self._settings, 0.0, 0
        longest_s = settings.poll_timeout_s + 2 * settings.poll_interval_s  # of one round; more is this process standing still
        began, has_answered = self._clock(), False
        while True:
            was_silent_s = silent_s
            try:
                await self._reconnect()
                is_ready, silent_s, failures = await self._ask_ready(), 0.0, 0
                has_answered = True
            except Exception as failure:  # whatever a server does, the watch goes on
                if not isinstance(failure, CallFailed | OSError):  # TimeoutError is an OSError
                    logger.exception("the server at %s could not be asked", settings.address)
                failures += 1
                is_ready = self.is_ready and failures < 2 and isinstance(failure, TimeoutError)
                silent_s += min(self._clock() - began, longest_s)
            if is_ready is not self.is_ready:
                logger.info("the server at %s %s", settings.address, "is ready" if is_ready else "is not ready")
            self.is_ready = is_ready
            if was_silent_s <= settings.max_silence_s < silent_s:
                if has_answered:
                    logger.error("the server at %s has not answered for %.1f s; its sessions are ended", settings.address, silent_s)
                else:
                    logger.info("the server at %s has not answered in the first %.1f s; it may be starting", settings.address, silent_s)
                self.on_silence()
            began = self._clock()
            await asyncio.sleep(settings.poll_interval_s)

    async def _reconnect(self) -> None:
        if self._connection is None or self._connection.is_leaving:
            self._connection = await connect(self._settings.address, self._on_lost)

    async def _ask_ready(self) -> bool:
        question = service_pb2.ServerReadyRequest().SerializeToString()
        answer = await self._call("ServerReady", question, self._settings.poll_timeout_s)
        hold_file = self._settings.hold_file
        try:
            return bool(service_pb2.ServerReadyResponse.FromString(answer).ready) and not (hold_file and hold_file.exists())
        except DecodeError:
            return False

    def _on_lost(self, connection: ClientConnection) -> None:
        if self._connection is connection:
            self._connection = None
            self.is_ready = False

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def public_error(message: str) -> BistreamError:
    """What clients are told of an error of the server: its own codes as they are, words of Triton itself never."""
    error = parse_error(message)
    if error.code in ERRORS_BY_CODE:
        return error
    logger.error("the server failed: %s", message.replace("\n", " ")[:300])
    return EngineError(FAILED)


def _public_failure(failure: CallFailed) -> BistreamError:
    if failure.status == grpc.StatusCode.UNAVAILABLE and parse_error(failure.details).code not in ERRORS_BY_CODE:
        return EngineError(UNREACHABLE)
    if failure.status == grpc.StatusCode.UNIMPLEMENTED:
        return WrongCallError("This model streams; call it with ModelStreamInfer over gRPC.")
    return public_error(failure.details)
