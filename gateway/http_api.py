"""The offline front model over HTTP: KServe's ``infer`` for ``cosyvoice2``, health, metadata, and the gate's metrics.

A body is bounded before anything of it is parsed, checked, and forwarded over gRPC: Triton's own HTTP port dies of large JSON.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bistream.contract.refusals import format_error
from bistream.errors import BistreamError, InvalidInputError, NotServedError
from gateway import public
from gateway.admission import Caller
from gateway.gate import Gate
from gateway.http_json import HEADER_LENGTH, HttpInfer, read_infer, write_answer
from gateway.http_server import HttpServer
from gateway.keys import HEADERS
from gateway.metrics import Exposition
from gateway.refusals import TooLargeError, http_status, retry_after
from gateway.requests import served_name

BODY_TIMEOUT_S = 60.0
PARSERS = 2  # bodies parsed at a time, in threads
_SMALL_BODY = 16 * 1024  # parsed without a thread
Handler = Callable[[Request], Awaitable[Response]]


class _CountedResponse(StreamingResponse):
    """Says when it has been sent, or could not be."""

    def __init__(self, done: Callable[[], None], *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._done = done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._done()


class HttpApi(HttpServer):
    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._metrics = Exposition(gate.metrics, gate.gauges)
        self._parsers = asyncio.Semaphore(PARSERS)
        super().__init__(_impatient(Starlette(routes=self._routes()), gate.limits.stall_timeout_s))

    def _routes(self) -> list[Route]:
        gate = self._gate

        async def live(request: Request) -> Response:
            return Response(status_code=200)

        async def ready(request: Request) -> Response:
            return Response(status_code=200 if gate.is_ready else 503)

        async def metrics(request: Request) -> Response:
            return Response(self._metrics.text(), media_type="text/plain; version=0.0.4")

        async def server(request: Request) -> Response:
            return _message(await public.server_metadata(gate))

        async def model_ready(request: Request) -> Response:
            return Response(status_code=200 if await public.model_ready(gate, *_model(request)) else 400)

        async def model(request: Request) -> Response:
            return _message(await public.model_metadata(gate, *_model(request)))

        async def config(request: Request) -> Response:
            return _message((await public.model_config(gate, *_model(request))).config)

        async def statistics(request: Request) -> Response:
            return _message(await public.statistics(gate, *_model(request)))

        async def other(request: Request) -> Response:
            raise NotServedError("This call is not served here.")

        routes = [
            Route("/v2/health/live", live),
            Route("/v2/health/ready", ready),
            Route("/metrics", self._guarded(metrics)),
            Route("/v2", self._guarded(server)),
            Route("/v2/models/stats", self._guarded(statistics)),
        ]
        for prefix in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
            routes += [
                Route(prefix, self._guarded(model)),
                Route(f"{prefix}/ready", self._guarded(model_ready)),
                Route(f"{prefix}/config", self._guarded(config)),
                Route(f"{prefix}/stats", self._guarded(statistics)),
                Route(f"{prefix}/infer", self._guarded(self._infer), methods=["POST"]),
            ]
        everything = ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"]
        return [*routes, Route("/{path:path}", self._guarded(other), methods=everything)]

    def _guarded(self, handler: Handler) -> Handler:
        async def guarded(request: Request) -> Response:
            try:
                request.state.caller = self._caller(request)
                return await handler(request)
            except BistreamError as error:
                # No close: the rest of a body is still to be read, or its client would see a reset and no answer.
                return JSONResponse({"error": format_error(error)}, status_code=http_status(error), headers=retry_after(error))
            except (ClientDisconnect, TimeoutError):
                return Response(status_code=408, headers={"connection": "close"})

        return guarded

    def _caller(self, request: Request) -> Caller:
        headers = {name: value for name in HEADERS if (value := request.headers.get(name)) is not None}
        address = self._gate.address_of(request.headers, request.client.host if request.client else "")
        return self._gate.caller(headers, address)

    async def _infer(self, request: Request) -> Response:
        gate, caller = self._gate, request.state.caller
        gate.admission.open_call(caller)  # until its answer is taken
        try:
            infer = await self._read(request)
            response = await _unless_gone(request, gate.infer(caller, infer.request))
            answer = write_answer(response, infer)
        except BaseException:
            gate.admission.close_call(caller)
            raise
        headers, media_type = {}, "application/json"
        if answer.json_bytes is not None:
            headers, media_type = {HEADER_LENGTH: str(answer.json_bytes)}, "application/octet-stream"
        done = functools.partial(gate.admission.close_call, caller)
        return _CountedResponse(done, self._sending(answer.pieces), headers=headers, media_type=media_type)

    async def _sending(self, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
        for piece in pieces:
            self._gate.metrics.bytes_out += len(piece)
            yield piece
            await asyncio.sleep(0)  # the streams of others go between two pieces

    async def _read(self, request: Request) -> HttpInfer:
        if request.headers.get("content-encoding", "identity") != "identity":
            raise InvalidInputError("Compressed bodies are not served here; send the request as it is.")
        limits = self._gate.limits
        json_bytes = _json_length(request)
        limit = limits.max_json_bytes if json_bytes is None else limits.max_message_bytes
        with self._gate.input_budget.holding(request.state.caller.holder) as hold:
            return await self._parse(request, await _body(request, limit, hold), json_bytes)

    async def _parse(self, request: Request, body: bytes, json_bytes: int | None) -> HttpInfer:
        limits = self._gate.limits
        self._gate.metrics.bytes_in += len(body)
        model, version = _model(request)
        arguments = (model, version, body, json_bytes, limits)
        try:
            if len(body) <= _SMALL_BODY:
                return read_infer(*arguments)
            async with self._parsers:
                return await asyncio.to_thread(read_infer, *arguments)
        except InvalidInputError as error:
            self._gate.metrics.refusals[error.code] += 1
            raise


def _model(request: Request) -> tuple[str, str]:
    return served_name(request.path_params.get("model", "")), request.path_params.get("version", "")


def _json_length(request: Request) -> int | None:
    text = request.headers.get(HEADER_LENGTH)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise InvalidInputError("Inference-Header-Content-Length is no number; send the bytes of the JSON.")
    return int(text)


async def _body(request: Request, limit: int, hold: Callable[[int], None]) -> bytes:
    """Raises ``TooLargeError`` before a byte too much is kept, ``BusyError``, ``TimeoutError`` when it comes too slowly."""
    announced = request.headers.get("content-length", "0")
    too_large = TooLargeError(f"The body has more than {limit} bytes; send a shorter recording, or a long one as a binary tensor.")
    if not announced.isdigit() or int(announced[:12]) > limit:
        raise too_large
    body = bytearray()
    async with asyncio.timeout(BODY_TIMEOUT_S):
        async for piece in request.stream():
            body += piece
            if len(body) > limit:
                raise too_large
            hold(len(piece))
    return bytes(body)


async def _unless_gone(request: Request, work: Awaitable[Any]) -> Any:
    """The result of ``work``, which is cancelled when the client goes. Raises ``ClientDisconnect``."""
    task = asyncio.ensure_future(work)
    gone = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _message(message: Any) -> Response:
    return JSONResponse(_plain(message))


def _plain(message: Any) -> dict[str, Any]:
    """A protobuf message as Triton writes it in JSON: protobuf's own form has strings where a number has 64 bits."""
    plain: dict[str, Any] = {}
    for field, value in message.ListFields():
        if isinstance(value, Mapping):
            of_map = functools.partial(_plain_value, field.message_type.fields_by_name["value"])
            plain[field.name] = {key: of_map(item) for key, item in value.items()}
            continue
        one = functools.partial(_plain_value, field)
        plain[field.name] = [one(item) for item in value] if isinstance(value, Sequence) and not isinstance(value, str) else one(value)
    return plain


def _plain_value(field: Any, value: Any) -> Any:
    if field.type == field.TYPE_MESSAGE:
        return _plain(value)
    return field.enum_type.values_by_number[value].name if field.type == field.TYPE_ENUM else value


def _impatient(app: ASGIApp, timeout_s: float) -> ASGIApp:
    """A client that takes nothing of its answer for so long loses it."""

    async def bounded(scope: Scope, receive: Receive, send: Send) -> None:
        async def timed(message: Message) -> None:
            async with asyncio.timeout(timeout_s):
                await send(message)

        try:
            await app(scope, receive, timed)
        except TimeoutError:
            return

    return bounded
