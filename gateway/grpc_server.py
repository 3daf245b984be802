"""Triton's own gRPC protocol, as far as it is public, and gRPC's health protocol, on ``grpc.aio``. Messages are raw bytes here.

Every call is taken as a stream of messages, so that it is judged before anything of it is read: who calls, how many calls are open, and how
many messages a unary call has. No header of a client is read but those with an API key and, behind a proxy, its address; none is passed on.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from bistream.contract.refusals import format_error
from bistream.errors import BistreamError, BusyError, ConfigError, InvalidInputError, ShuttingDownError
from gateway.admission import Caller
from gateway.conversation import Conversation
from gateway.gate import Gate
from gateway.grpc_call import CallError, Context, peer_host, read_message, read_one
from gateway.grpc_questions import HEALTH, Question, health_of, parsed, questions
from gateway.listening import server_credentials
from gateway.messages import data_bytes, error_bytes, final_bytes, parse_request, read_request, wants_empty_final
from gateway.refusals import TooLargeError, grpc_status
from gateway.requests import PUBLIC, served_name
from gateway.session import Answer
from gateway.settings import GateLimits, TlsSettings
from gateway.upstream import SERVICE

logger = logging.getLogger(__name__)

SPARE_CALLS = 1024  # beyond the streams of the gate, so that one too many is told so in words
SPARE_STREAMS = 128  # of a connection, likewise
MAX_METADATA_BYTES = 24 * 1024  # as gRPC counts: 16 KiB of many short fields, which the edge lets through
MAX_QUESTION_BYTES = 64 * 1024
KEEPALIVE_S = 30  # a client that has vanished is noticed after once or twice this time
IDLE_CONNECTION_S = 60  # without a call
HEALTH_INTERVAL_S = 0.5  # at which a watcher of the health hears of a change
READING_S = 0.5  # for clients to read what was sent last, before their connections are told to go
CLOSING_S = 1.0  # after their last words, before calls that are left are cancelled
OPEN_TO_ALL = (SERVICE, "ServerLive"), (SERVICE, "ServerReady"), (HEALTH, "Check"), (HEALTH, "Watch")  # load balancers have no key
USELESS = "The stream was not used, or its answers were not taken, for too long; open another one."


def server_options(limits: GateLimits, behind_proxy: bool = False) -> list[tuple[str, int]]:
    """Of gRPC's own server. The names are those of ``grpc/impl/channel_arg_names.h``."""
    of_connection = limits.max_streams if behind_proxy else min(limits.max_streams, limits.streams_per_address or limits.max_streams)
    return [
        ("grpc.so_reuseport", 0),  # a port in use is an error
        ("grpc.max_receive_message_length", limits.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.max_concurrent_streams", of_connection + SPARE_STREAMS),  # of a connection: a proxy has one for many clients
        ("grpc.http.overload_protection", 1),  # streams that were reset count too, until the gate has seen them
        ("grpc.compression_enabled_algorithms_bitset", 1),  # none: a small message could become a large one
        ("grpc.http2.bdp_probe", 0),  # windows stay small; a message that is being read may be as large as its limit all the same
        ("grpc.keepalive_time_ms", KEEPALIVE_S * 1000),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_S * 1000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_ping_strikes", 0),  # clients may keep their connections alive as often as they like
        ("grpc.max_connection_idle_ms", IDLE_CONNECTION_S * 1000),
        # A burst of new calls waits for the event loop instead of being cancelled without a word.
        ("grpc.server.max_pending_requests", limits.max_streams + SPARE_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", 2 * (limits.max_streams + SPARE_CALLS)),
    ]


class GrpcServer(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """``start`` once, ``stop`` once."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._questions = questions(gate)
        self._server: Any = None
        self._calls: set[Context] = set()  # until their status has been sent
        self._streams: set[asyncio.Future[CallError]] = set()  # set: how the gate ends the stream
        self.port = 0

    async def start(self, address: str, port: int, tls: TlsSettings | None) -> None:
        """Raises ``ConfigError`` when the port cannot be had, or the certificate not be used."""
        credentials = None if tls is None else server_credentials(tls)
        limits = self._gate.limits
        self._server = grpc.aio.server(
            handlers=[self],
            options=server_options(limits, self._gate.settings.behind_proxy),
            maximum_concurrent_rpcs=limits.max_streams + SPARE_CALLS,
        )
        where = f"{f'[{address}]' if ':' in address else address}:{port}"
        try:
            self.port = self._server.add_insecure_port(where) if credentials is None else self._server.add_secure_port(where, credentials)
        except RuntimeError:
            raise ConfigError(f"gRPC port {port} at {address} cannot be used; choose another one.") from None
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Calls may end within ``grace_s``; those that are left end with ``SHUTTING_DOWN``; then connections are told to go. Idempotent.

        Some clients end all of their calls as soon as they are told that their connection goes, and drop what they have not read yet.
        """
        server, self._server = self._server, None
        if server is None:
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace_s
        while self._calls and loop.time() < deadline:
            await asyncio.sleep(0.02)
        await asyncio.sleep(min(grace_s, READING_S))
        farewell = ShuttingDownError("The server is shutting down; connect to another one.")
        for stream in self._streams:
            _end(stream, CallError(grpc.StatusCode.UNAVAILABLE, format_error(farewell)))
        await server.stop(CLOSING_S)

    def service(self, handler_call_details: Any) -> Any:
        """As gRPC asks: how a call is handled."""
        return grpc.stream_stream_rpc_method_handler(functools.partial(self._handle, handler_call_details.method))

    async def _handle(self, path: str, _: Any, context: Context) -> None:
        """Every call of every client. It counts until the client has its status: gRPC cannot reset the call of one that takes nothing."""
        service, _, method = path.removeprefix("/").partition("/")
        self._calls.add(context)
        context.add_done_callback(self._calls.discard)
        async with _aborted(context):
            caller = self._caller((service, method), context)
            with self._gate.call(caller):
                async with _aborted(context):
                    await self._answer(service, method, caller, context)

    async def _answer(self, service: str, method: str, caller: Caller, context: Context) -> None:
        """Raises ``CallError`` and ``BistreamError``."""
        if service == SERVICE and method == "ModelStreamInfer":
            await self._converse(caller, context)
        elif service == SERVICE and method == "ModelInfer":
            await self._infer(caller, context)
        elif (service, method) == (HEALTH, "Watch"):
            await self._watch(context)
        elif (service, method) in self._questions:
            await self._reply(*self._questions[service, method], context)
        else:
            raise CallError(grpc.StatusCode.UNIMPLEMENTED, "This call is not served here.")

    def _caller(self, call: tuple[str, str], context: Context) -> Caller:
        headers = {name: value for name, value in context.invocation_metadata() if isinstance(value, str)}
        address = self._gate.address_of(headers, peer_host(context.peer()))
        return Caller(f"health {address}") if call in OPEN_TO_ALL else self._gate.caller(headers, address)

    # Unary calls

    async def _reply(self, request_type: Any, question: Question, context: Context) -> None:
        data = await read_one(context)
        if len(data) > MAX_QUESTION_BYTES:
            raise TooLargeError(f"The message has more than {MAX_QUESTION_BYTES} bytes; a question needs a name only.")
        answer = await question(parsed(request_type, data))
        await context.write(answer.SerializeToString())

    async def _infer(self, caller: Caller, context: Context) -> None:
        gate = self._gate
        data = await read_one(context)
        gate.metrics.bytes_in += len(data)
        response: bytes = (await gate.infer(caller, read_request(parse_request(data), gate.limits))).SerializeToString()
        await context.write(response)
        gate.metrics.bytes_out += len(response)

    # Streams

    @contextlib.contextmanager
    def _ended_by_gate(self) -> Any:
        """A future whose result is the end that the gate makes of a stream."""
        ended: asyncio.Future[CallError] = asyncio.get_running_loop().create_future()
        self._streams.add(ended)
        try:
            yield ended
        finally:
            self._streams.discard(ended)

    async def _watch(self, context: Context) -> None:
        """gRPC's health: its state, and every change of it."""
        name = parsed(health_pb2.HealthCheckRequest, await read_message(context)).service
        told = None
        with self._ended_by_gate() as ended:
            while not ended.done():
                status = health_of(self._gate, name)
                if status != told:
                    await context.write(health_pb2.HealthCheckResponse(status=status).SerializeToString())
                    told = status
                await asyncio.wait({ended}, timeout=HEALTH_INTERVAL_S)
            raise ended.result()

    async def _converse(self, caller: Caller, context: Context) -> None:
        conversation = self._gate.converse(caller)
        with self._ended_by_gate() as ended:
            conversation.on_close = lambda: _end(ended, CallError(grpc.StatusCode.UNAVAILABLE, USELESS))
            reader = asyncio.create_task(self._read(conversation, context))
            writer = asyncio.create_task(_write(conversation, context))
            try:
                await asyncio.wait({reader, writer, ended}, return_when=asyncio.FIRST_COMPLETED)
                if reader.done():
                    reader.result()
                    await asyncio.wait({writer, ended}, return_when=asyncio.FIRST_COMPLETED)
                if ended.done():
                    raise ended.result()
                writer.result()
            finally:
                reader.cancel()
                # The writer ends behind the message that it is writing. Were that write cancelled, gRPC would neither send the rest of the
                # message nor the status, and a client that reads again would wait for ever.
                conversation.close()
                await asyncio.gather(reader, writer, return_exceptions=True)

    async def _read(self, conversation: Conversation, context: Context) -> None:
        """Requests until the client half-closes."""
        gate = self._gate
        while (data := await context.read()) is not grpc.aio.EOF:
            gate.metrics.bytes_in += len(data)
            message: Any = None
            with gate.input_budget.holding(conversation.caller.holder) as hold:
                try:
                    hold(len(data))
                    message = parse_request(data)
                    request = read_request(message, gate.limits)
                except (InvalidInputError, BusyError) as error:
                    await _refuse_message(conversation, message, error)
                else:
                    del data, message  # a recording may have to wait for room, and the request has it
                    await conversation.send(request)
        conversation.end_of_requests()


@contextlib.asynccontextmanager
async def _aborted(context: Context) -> AsyncIterator[None]:
    """A call ends with the status of the error that is raised inside. Raises gRPC's ``AbortError`` then."""
    try:
        yield
    except (CallError, BistreamError) as error:
        end = error if isinstance(error, CallError) else CallError(grpc_status(error), format_error(error))
        await context.abort(end.status, end.details)
    except grpc.aio.AbortError:
        raise
    except grpc.aio.BaseError:
        return  # the client has gone
    except Exception:
        logger.exception("a call failed")
        await context.abort(grpc.StatusCode.INTERNAL, "ENGINE_ERROR: The gate failed; try again.")


def _end(stream: asyncio.Future[CallError], how: CallError) -> None:
    if not stream.done():
        stream.set_result(how)


async def _refuse_message(conversation: Conversation, message: Any, error: BistreamError) -> None:
    if message is None:
        await conversation.refuse("", "", True, error)
        return
    model = served_name(message.model_name)
    await conversation.refuse(model if model in PUBLIC else "", message.id[:1024], wants_empty_final(message), error)


async def _write(conversation: Conversation, context: Context) -> None:
    while (answer := await conversation.next_answer()) is not None:
        data = answer_bytes(answer)
        if data is not None:
            await context.write(data)
        conversation.sent(answer, len(data or b""))


def answer_bytes(answer: Answer) -> bytes | None:
    """``None`` for an empty final response that was not asked for."""
    if answer.response is not None:
        return data_bytes(answer.response, answer.request_id)
    if answer.error is not None:
        return error_bytes(answer.model, answer.request_id, answer.error)
    return final_bytes(answer.model, answer.request_id) if answer.wants_empty_final else None
