"""What every request meets first: its id, the origin of a browser, the API key, and the size of its body. An ASGI middleware."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import replace
from typing import Any

from starlette.responses import Response

from bistream.errors import BistreamError, InvalidInputError, SessionTimeoutError, ShuttingDownError
from interfaces.core.caller import Caller
from interfaces.core.errors import TooLargeError
from interfaces.core.service import SpeechService
from interfaces.core.trace import trace_of
from interfaces.settings import InterfaceLimits
from interfaces.web.access import Access
from interfaces.web.answers import error_response

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

OPEN_PATHS = ("/", "/health/live", "/health/ready", "/favicon.ico")
PROBED_PATHS = ("/health/live", "/health/ready", "/metrics")  # orchestrators call a process by its address
OPEN_PREFIX = "/page/"
KEY_IN_MESSAGE = re.compile(r"/v1/text-to-speech/[^/]+/(multi-)?stream-input\Z")  # WebSockets whose first message may have the key
UPLOADS = ("/v1/audio/voices", "/v1/voices/add", "/voices/clone")
REQUEST_ID_HEADERS = (b"x-request-id", b"request-id")  # the second is ElevenLabs', for ``previous_request_ids``
FORM_BYTES = 64 * 1024  # beside the file in an upload


class Guard:
    def __init__(self, app: Any, access: Access, service: SpeechService, limits: InterfaceLimits) -> None:
        self._app = app
        self._access = access
        self._service = service
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        trace = trace_of(headers)
        named = _naming(send, trace.request_id)
        state = scope.setdefault("state", {})
        state["trace"] = trace
        try:
            self._check(scope, headers, state)
            if state["caller"] is not None:
                state["caller"] = replace(state["caller"], trace=trace)
        except BistreamError as error:
            if isinstance(error, _ForeignError):
                self._service.log.warn(state["address"], error.sentence)
            await refuse(scope, receive, named, error_response(error))
            return
        if scope["type"] == "http":
            if scope["method"] == "HEAD":  # the server leaves out the body, by its own scope
                scope = {**scope, "method": "GET"}
            await self._app(scope, _bounded(receive, self._body_limit(scope["path"]), self._limits.body_timeout_s), named)
        else:
            await self._app(scope, receive, named)

    def _check(self, scope: Scope, headers: dict[str, str], state: dict[str, Any]) -> None:
        path = scope["path"]
        address = state["address"] = self._access.address_of(headers, (scope.get("client") or ("unknown", 0))[0])
        hosts = [value for name, value in scope["headers"] if name.lower() == b"host"]
        if path not in PROBED_PATHS and (len(hosts) > 1 or not self._access.allows_host(headers.get("host"))):
            raise _ForeignError("The gateway is not called by this host name; start it with --allowed-hosts to let it.")
        if not self._access.allows_origin(headers.get("origin"), headers.get("host")):
            raise _ForeignError("Pages of this origin may not use the gateway; start it with --allow-origin to let them.")
        is_open = path in OPEN_PATHS or path.startswith(OPEN_PREFIX)
        if is_open:
            state["caller"] = Caller(None, address)
        else:
            state["caller"], state["subprotocol"] = self._identify(scope, headers, address)
        if scope["type"] == "http" and not is_open:
            _check_length(headers.get("content-length"), self._body_limit(path))
        if self._service.drains.is_set() and not is_open and path != "/metrics":
            raise ShuttingDownError("The gateway is shutting down and takes no new requests; connect to another one.")

    def _identify(self, scope: Scope, headers: dict[str, str], address: str) -> tuple[Caller | None, str | None]:
        """The caller is None where the first message of the WebSocket has to say who it is."""
        offered = scope.get("subprotocols", ())
        if scope["type"] == "websocket" and KEY_IN_MESSAGE.match(scope["path"]) and self._access.wants_key_in_message(headers, offered):
            return None, None
        identity = self._access.identify(headers, address, offered)
        return identity.caller, identity.subprotocol

    def _body_limit(self, path: str) -> int:
        return self._limits.max_upload_bytes + FORM_BYTES if path in UPLOADS else self._limits.max_body_bytes


class _ForeignError(InvalidInputError):
    """A page of another site, or one whose name stands for this machine's address."""

    code = "FOREIGN"


async def refuse(scope: Scope, receive: Receive, send: Send, response: Response) -> None:
    """Also a WebSocket before it is accepted, with the status and the sentence where the server can (else 403)."""
    if scope["type"] == "websocket" and "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008})
        return
    await response(scope, receive, send)


def _check_length(content_length: str | None, limit: int) -> None:
    if content_length is not None and content_length.isdecimal() and int(content_length) > limit:
        raise _too_large(limit)


def _too_large(limit: int) -> TooLargeError:
    return TooLargeError(f"The body of the request is larger than {limit} bytes; send less.")


def _bounded(receive: Receive, limit: int, timeout_s: float) -> Receive:
    """The body in size and in time; what follows it (that the client is gone) may be waited for."""
    received, is_complete = 0, False
    deadline = asyncio.get_running_loop().time() + timeout_s if timeout_s else None

    async def bounded() -> MutableMapping[str, Any]:
        nonlocal received, is_complete
        try:
            async with asyncio.timeout_at(None if is_complete else deadline):
                message = await receive()
        except TimeoutError:
            raise SessionTimeoutError(f"The body of the request was not complete after {timeout_s:g} s; send it faster.") from None
        received += len(message.get("body", b""))
        is_complete = not message.get("more_body", False)
        if received > limit:
            raise _too_large(limit)
        return message

    return bounded


def _naming(send: Send, request_id: str) -> Send:
    async def named(message: MutableMapping[str, Any]) -> None:
        if message["type"] in ("http.response.start", "websocket.http.response.start", "websocket.accept"):
            message["headers"] = [*message.get("headers", []), *((name, request_id.encode("ascii")) for name in REQUEST_ID_HEADERS)]
        await send(message)

    return named
