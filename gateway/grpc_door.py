"""Triton's own gRPC protocol, as far as it is public. Calls come from ``http2.server`` as raw bytes; everything about them is decided here.

No header of a client is read but those with an API key, and none is passed on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from bistream.errors import BistreamError, BusyError, InvalidInputError, ShuttingDownError
from bistream.wire import format_error
from gateway import public
from gateway.acceptor import Acceptor
from gateway.admission import Caller
from gateway.conversation import Conversation
from gateway.gate import Gate
from gateway.http2.server import CallError, Http2Server, ServerCall, ServerSettings
from gateway.keys import HEADERS
from gateway.listening import listening_socket, server_context
from gateway.messages import data_bytes, error_bytes, final_bytes, parse_request, read_request, wants_empty_final
from gateway.refusals import TooLargeError, grpc_status
from gateway.requests import PUBLIC, served_name
from gateway.session import Answer
from gateway.settings import TlsSettings
from gateway.upstream import SERVICE

MAX_STREAMS = 1024  # of one connection, where addresses have no limit
SPARE_STREAMS = 64  # so that a stream too much is told so, and does not wait in the client's library
MAX_QUESTION_BYTES = 64 * 1024
BODY_TIMEOUT_S = 60.0  # for the message of a unary call
REQUESTS_PER_TURN = 8  # of one stream, before the event loop sees to the others
OPEN_TO_ALL = ("ServerLive", "ServerReady")  # answered without an API key: load balancers have none
_USELESS = "The stream was not used, or its answers were not taken, for too long; open another one."
Question = Callable[[Any], Awaitable[Any]]


class GrpcDoor:
    """``start`` once, ``stop`` once."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        limits = gate.limits
        streams, busy = limits.streams_per_address, format_error(BusyError("Too many calls are open; close some, or try again later."))
        settings = ServerSettings(
            max_streams=(streams or MAX_STREAMS) + SPARE_STREAMS,
            calls_per_address=streams + SPARE_STREAMS if streams else 0,
            max_calls=limits.max_streams + SPARE_STREAMS,
            max_message_bytes=limits.max_message_bytes,
            busy=busy,
            kept_headers=frozenset(name.encode() for name in HEADERS),
        )
        self._server = Http2Server(self._handle, settings, gate.input_budget)
        self._acceptor: Acceptor | None = None
        self._questions = _questions(gate)

    @property
    def port(self) -> int:
        return 0 if self._acceptor is None else self._acceptor.port

    @property
    def connections(self) -> int:
        return self._server.connections

    async def start(self, address: str, port: int, tls: TlsSettings | None) -> None:
        """Raises ``ConfigError`` when the port cannot be had, or the certificate not be used."""
        context = None if tls is None else server_context(tls, ["h2"])
        self._acceptor = Acceptor(listening_socket(address, port, "gRPC"), self._server.connection, context, self._gate.limits)

    async def stop(self, grace_s: float) -> None:
        """Connections are told to go; calls that are left after ``grace_s`` end with ``SHUTTING_DOWN``."""
        if self._acceptor is None:
            return
        self._acceptor.stop()
        await self._server.stop(grace_s, format_error(ShuttingDownError("The server is shutting down; connect to another one.")))

    async def _handle(self, call: ServerCall) -> None:
        """Every call of every client. Raises ``CallError`` and ``StreamLost``."""
        service, _, method = call.path.removeprefix("/").partition("/")
        try:
            if service == SERVICE and method == "ModelStreamInfer":
                await self._stream(call)
            elif service == SERVICE and method == "ModelInfer":
                await self._infer(call)
            elif service == SERVICE and method in self._questions:
                await self._answer(call, method)
            else:
                raise CallError(grpc.StatusCode.UNIMPLEMENTED, "This call is not served here.")
        except BistreamError as error:
            raise CallError(grpc_status(error), format_error(error)) from None

    async def _answer(self, call: ServerCall, method: str) -> None:
        with contextlib.ExitStack() as stack:
            if method not in OPEN_TO_ALL:
                caller = self._caller(call)
                stack.enter_context(self._gate.unary(caller))
                await self._gate.pace(caller)
            request_type, question = self._questions[method]
            data = await call.read_one(BODY_TIMEOUT_S)
            if len(data) > MAX_QUESTION_BYTES:
                raise TooLargeError(f"The message has more than {MAX_QUESTION_BYTES} bytes; a question needs a name only.")
            answer = await question(_parsed(request_type, data))
            await call.write(answer.SerializeToString(), self._gate.limits.stall_timeout_s)

    def _caller(self, call: ServerCall) -> Caller:
        return self._gate.caller({name: call.headers[name] for name in HEADERS if name in call.headers}, call.peer)

    async def _infer(self, call: ServerCall) -> None:
        gate, caller = self._gate, self._caller(call)
        with gate.unary(caller):
            await gate.pace(caller)
            data = await call.read_one(BODY_TIMEOUT_S)
            gate.metrics.bytes_in += len(data)
            response: bytes = (await gate.infer(caller, read_request(parse_request(data), gate.limits))).SerializeToString()
            await call.write(response, gate.limits.stall_timeout_s)
            gate.metrics.bytes_out += len(response)

    async def _stream(self, call: ServerCall) -> None:
        conversation = self._gate.converse(self._caller(call))
        closed = asyncio.get_running_loop().create_future()
        conversation.send_at_once = lambda answer: _send_at_once(conversation, call, answer)
        conversation.on_close = lambda: None if closed.done() else closed.set_result(None)
        reader = asyncio.create_task(self._read(conversation, call))
        writer = asyncio.create_task(_write(conversation, call))
        try:
            await asyncio.wait({reader, writer, closed}, return_when=asyncio.FIRST_COMPLETED)
            if reader.done():
                reader.result()
                await asyncio.wait({writer, closed}, return_when=asyncio.FIRST_COMPLETED)
            if closed.done():  # the gate has closed it, and with it woken the writer
                raise CallError(grpc.StatusCode.UNAVAILABLE, _USELESS)
            writer.result()
        finally:
            reader.cancel()
            writer.cancel()
            conversation.close()
            await asyncio.gather(reader, writer, return_exceptions=True)

    async def _read(self, conversation: Conversation, call: ServerCall) -> None:
        """Requests until the client half-closes."""
        gate, count = self._gate, 0
        while (data := await call.read()) is not None:
            count += 1
            if count % REQUESTS_PER_TURN == 0:  # those that have come already are read without a turn of the event loop
                await asyncio.sleep(0)
            await gate.pace(conversation.caller)
            gate.metrics.bytes_in += len(data)
            message: Any = None
            try:
                message = parse_request(data)
                request = read_request(message, gate.limits)
            except InvalidInputError as error:
                await _refuse_message(conversation, message, error)
            else:
                del data, message  # a recording may have to wait for room, and the request has it
                await conversation.send(request)
        conversation.end_of_requests()


def _questions(gate: Gate) -> dict[str, tuple[Any, Question]]:
    """The unary calls that are answered, by method: type of the request, and the answer."""

    async def live(request: Any) -> Any:
        return service_pb2.ServerLiveResponse(live=True)

    async def ready(request: Any) -> Any:
        return service_pb2.ServerReadyResponse(ready=gate.is_ready)

    def of_model(ask: Callable[[Gate, str, str], Awaitable[Any]]) -> Question:
        return lambda request: ask(gate, served_name(request.name), request.version)

    async def model_ready(request: Any) -> Any:
        is_ready = await public.model_ready(gate, served_name(request.name), request.version)
        return service_pb2.ModelReadyResponse(ready=is_ready)

    return {
        "ServerLive": (service_pb2.ServerLiveRequest, live),
        "ServerReady": (service_pb2.ServerReadyRequest, ready),
        "ModelReady": (service_pb2.ModelReadyRequest, model_ready),
        "ServerMetadata": (service_pb2.ServerMetadataRequest, lambda request: public.server_metadata(gate)),
        "ModelMetadata": (service_pb2.ModelMetadataRequest, of_model(public.model_metadata)),
        "ModelConfig": (service_pb2.ModelConfigRequest, of_model(public.model_config)),
        "ModelStatistics": (service_pb2.ModelStatisticsRequest, of_model(public.statistics)),
    }


async def _refuse_message(conversation: Conversation, message: Any, error: BistreamError) -> None:
    if message is None:
        await conversation.refuse("", "", True, error)
        return
    model = served_name(message.model_name)
    await conversation.refuse(model if model in PUBLIC else "", message.id[:1024], wants_empty_final(message), error)


async def _write(conversation: Conversation, call: ServerCall) -> None:
    while (answer := await conversation.next_answer()) is not None:
        data = answer_bytes(answer)
        if data is not None:
            await call.write(data)
        conversation.sent(answer, len(data or b""))


def _send_at_once(conversation: Conversation, call: ServerCall, answer: Answer) -> bool:
    """Without waking the task that writes; false when there is no room."""
    data = answer_bytes(answer)
    if data is not None and not call.try_write(data):
        return False
    conversation.sent(answer, len(data or b""))
    return True


def answer_bytes(answer: Answer) -> bytes | None:
    """``None`` for an empty final response that was not asked for."""
    if answer.response is not None:
        return data_bytes(answer.response, answer.request_id)
    if answer.error is not None:
        return error_bytes(answer.model, answer.request_id, answer.error)
    return final_bytes(answer.model, answer.request_id) if answer.wants_empty_final else None


def _parsed(request_type: Any, data: bytes) -> Any:
    try:
        return request_type.FromString(data)
    except DecodeError:
        raise InvalidInputError(f"The message is no {request_type.DESCRIPTOR.name}; send one of Triton's inference protocol.") from None
