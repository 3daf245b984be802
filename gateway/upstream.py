"""The link to Triton: one gRPC channel, a stream on it for each session, and a watch on the server's readiness. Raw bytes only.

Nothing of a client's call but checked bytes goes through here: no header, no deadline, no compression.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from bistream.contract.refusals import parse_error
from bistream.errors import ERRORS_BY_CODE, BistreamError, EngineError, WrongCallError
from gateway.settings import UpstreamSettings

logger = logging.getLogger(__name__)

SERVICE = "inference.GRPCInferenceService"
UNREACHABLE = "The speech server cannot be reached at the moment; try again in a few seconds."
LOST = "The speech server was lost; start the session again."
FAILED = "The speech server failed; try again."
UNARY_TIMEOUT_S = 10.0
# The names are those of grpc/impl/channel_arg_names.h.
CHANNEL_OPTIONS = [
    ("grpc.primary_user_agent", "bistream-gate"),
    ("grpc.enable_http_proxy", 0),  # Triton is on this machine, whatever http_proxy says
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", 512 * 1024 * 1024),  # an hour and a half of audio
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", 1024 * 1024),  # Triton's words about a failure
    ("grpc.absolute_max_metadata_size", 1024 * 1024),
    ("grpc.http2.lookahead_bytes", 4 * 1024 * 1024),  # of audio on its way in a stream; all of it is read as it comes
    ("grpc.http2.bdp_probe", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),  # also the time for a connection to be made
    ("grpc.max_reconnect_backoff_ms", 1000),
]


class UpstreamLost(Exception):
    """The stream to Triton has broken, or could not be opened."""


class UpstreamStream:
    """One ``ModelStreamInfer`` call."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._finishing: asyncio.Task[None] | None = None

    async def receive(self, consumer: Callable[[bytes], None]) -> None:
        """Give every response to ``consumer`` as it comes, until the server has ended the stream properly. Raises ``UpstreamLost``.

        consumer: raises nothing.
        """
        try:
            while (data := await self._call.read()) is not grpc.aio.EOF:
                consumer(data)
        except BaseException as error:
            raise _loss(error) from None

    async def write(self, data: bytes) -> None:
        """Returns when there is room for more. Raises ``UpstreamLost``. One at a time; a task that is cancelled here cancels the stream."""
        try:
            await self._call.write(data)
        except BaseException as error:
            raise _loss(error) from None

    def finish(self) -> None:
        """No more requests. Idempotent; not while ``write`` is under way."""
        if self._finishing is None:
            self._finishing = asyncio.create_task(self._finish())

    async def _finish(self) -> None:
        try:
            await self._call.done_writing()
        except (grpc.aio.BaseError, grpc.aio.AioRpcError, asyncio.CancelledError):
            return  # the reading side says why

    def cancel(self) -> None:
        """Idempotent, and without effect on a stream that has ended."""
        self._call.cancel()


def _loss(error: BaseException) -> BaseException:
    """What to raise: gRPC reports a locally cancelled call as cancellation of the waiting task."""
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError):
        return error if task is not None and task.cancelling() else UpstreamLost()
    return UpstreamLost() if isinstance(error, grpc.RpcError | grpc.aio.BaseError | asyncio.InvalidStateError) else error


class Upstream:
    """Made in the running event loop. ``watch`` must run as a task."""

    def __init__(self, settings: UpstreamSettings) -> None:
        self._settings = settings
        self._channel = grpc.aio.insecure_channel(settings.address, options=CHANNEL_OPTIONS)
        self._open = self._channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")
        self.is_ready = False

    def open_stream(self) -> UpstreamStream:
        """Never waits: that Triton cannot be reached shows when the stream is read."""
        return UpstreamStream(self._open())

    async def infer(self, data: bytes) -> Any:
        """One ``ModelInfer`` call: a ``ModelInferResponse``. Raises ``BistreamError``. Cancelling the task cancels the call."""
        return await self._unary("ModelInfer", data, service_pb2.ModelInferResponse, None)

    async def ask(self, method: str, request: Any, response_type: Any) -> Any:
        """A question about the server or a model. Raises ``BistreamError``."""
        return await self._unary(method, request.SerializeToString(), response_type, UNARY_TIMEOUT_S)

    async def is_model_ready(self, model: str) -> bool:
        """False also for a model that Triton does not have. Raises ``BistreamError``."""
        request = service_pb2.ModelReadyRequest(name=model)
        return bool((await self.ask("ModelReady", request, service_pb2.ModelReadyResponse)).ready)

    async def _unary(self, method: str, data: bytes, response_type: Any, timeout_s: float | None) -> Any:
        try:
            return response_type.FromString(await self._call(method, data, timeout_s))
        except (DecodeError, TimeoutError):
            raise EngineError(FAILED) from None
        except grpc.aio.AioRpcError as failure:
            raise _public_failure(failure.code(), failure.details() or "") from None

    async def _call(self, method: str, data: bytes, timeout_s: float | None) -> bytes:
        """Raises gRPC's ``AioRpcError``, and ``TimeoutError``."""
        async with asyncio.timeout(timeout_s):
            return bytes(await self._channel.unary_unary(f"/{SERVICE}/{method}")(data))

    async def watch(self) -> None:
        """Keep ``is_ready`` true to the server's own word, and the hold file's. Runs until it is cancelled."""
        address, failures = self._settings.address, 0
        while True:
            try:
                is_ready, failures = await self._ask_ready(), 0
            except Exception as failure:  # whatever a server does, the watch goes on
                if not isinstance(failure, grpc.aio.AioRpcError | TimeoutError):
                    logger.exception("the server at %s could not be asked", address)
                failures += 1
                is_ready = self.is_ready and failures < 2 and isinstance(failure, TimeoutError)
            if is_ready is not self.is_ready:
                logger.info("the server at %s %s", address, "is ready" if is_ready else "is not ready")
            self.is_ready = is_ready
            await asyncio.sleep(self._settings.poll_interval_s)

    async def _ask_ready(self) -> bool:
        question = service_pb2.ServerReadyRequest().SerializeToString()
        answer = await self._call("ServerReady", question, self._settings.poll_timeout_s)
        hold_file = self._settings.hold_file
        try:
            return bool(service_pb2.ServerReadyResponse.FromString(answer).ready) and not (hold_file and hold_file.exists())
        except DecodeError:
            return False

    async def close(self) -> None:
        """With all calls."""
        await self._channel.close()


def public_error(message: str) -> BistreamError:
    """What clients are told of an error of the server: its own codes as they are, words of Triton itself never."""
    error = parse_error(message)
    if error.code in ERRORS_BY_CODE:
        return error
    logger.error("the server failed: %s", message.replace("\n", " ")[:300])
    return EngineError(FAILED)


def _public_failure(status: grpc.StatusCode, details: str) -> BistreamError:
    if status == grpc.StatusCode.UNAVAILABLE and parse_error(details).code not in ERRORS_BY_CODE:
        return EngineError(UNREACHABLE)
    if status == grpc.StatusCode.UNIMPLEMENTED:
        return WrongCallError("This model streams; call it with ModelStreamInfer over gRPC.")
    return public_error(details)
