"""The application: routes, the guard before them, health, metrics and the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from bistream.errors import BistreamError, EngineError
from interfaces.core.service import DRAIN_RETRY_AFTER_S, SpeechService
from interfaces.settings import InterfaceLimits
from interfaces.web import http_routes, model_routes, socket_routes, vendor_routes, voice_routes
from interfaces.web.access import Access
from interfaces.web.answers import error_response
from interfaces.web.guard import Guard
from interfaces.web.metrics import exposition
from interfaces.web.router import Router
from interfaces.web.uploads import Uploads

PAGE = Path(__file__).parent / "page"
# The page loads nothing from elsewhere, and no other site may frame it.
PAGE_HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; media-src 'self' blob:; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def make_app(service: SpeechService, access: Access, limits: InterfaceLimits, allowed_origins: Sequence[str] = ()) -> Any:
    """An ASGI application."""
    uploads, own = Uploads(service), Router()
    _add_health(own, service, access)

    @own.get("/")
    async def page(request: Request) -> FileResponse:
        return FileResponse(PAGE / "index.html", headers=PAGE_HEADERS)

    routers = (
        http_routes.routes(service, uploads),
        model_routes.routes(service),
        voice_routes.routes(service, uploads),
        vendor_routes.routes(service),
        socket_routes.routes(service, access),
        own,
    )
    routes = [route for router in routers for route in router.routes]
    handlers: dict[Any, Any] = {BistreamError: on_error, HTTPException: on_http_error, ClientDisconnect: on_gone, Exception: on_fault}
    app = Starlette(routes=[*routes, Mount("/page", StaticFiles(directory=PAGE))], exception_handlers=handlers)
    guarded: Any = Guard(app, access, service, limits)
    if allowed_origins:
        guarded = CORSMiddleware(guarded, allow_origins=list(allowed_origins), allow_methods=["GET", "POST", "DELETE"], allow_headers=["*"])
    return guarded


async def on_error(request: Request, error: BistreamError) -> Response:
    return error_response(error, getattr(error, "param", None))


async def on_http_error(request: Request, error: HTTPException) -> Response:
    message = {404: "There is no such address; docs/interfaces.md lists them.", 405: "This address has other methods."}
    sentence = message.get(error.status_code, "The request cannot be answered; correct it.")
    body = {"error": {"message": sentence, "type": "invalid_request_error", "param": None, "code": None}}
    return JSONResponse(body, error.status_code, {"x-should-retry": "false"})


async def on_gone(request: Request, error: ClientDisconnect) -> Response:
    return Response(status_code=499)  # nobody reads it


async def on_fault(request: Request, error: Exception) -> Response:
    return error_response(EngineError("The gateway has failed at this request; try again."))


def _add_health(router: Router, service: SpeechService, access: Access) -> None:
    @router.get("/health/live")
    async def live(request: Request) -> dict[str, str]:
        return {"status": "live"}

    @router.get("/health/ready")
    async def ready(request: Request) -> Response:
        if service.is_ready():
            return JSONResponse({"status": "ready"})
        status = "draining" if service.drains.is_set() else "no server takes sessions"
        return JSONResponse({"status": status}, 503, {"retry-after": str(DRAIN_RETRY_AFTER_S)})

    @router.get("/v1/load")
    async def load(request: Request) -> dict[str, Any]:
        """For the page."""
        servers = [
            {"is_ready": server.is_ready is True, "sessions": server.open_sessions, "load": round(server.expected_load, 3)}
            for server in service.servers.all
        ]
        counts = service.counts
        return {
            "utterances": service.open_speeches,
            "max_utterances": service.limits.max_speeches,
            "sockets": access.open_sockets,
            "servers": servers,
            "audio_s": round(counts.audio_s, 1),
            "speeches": counts.speeches,
            "refused": counts.refused,
            "cancelled": counts.cancelled,
        }

    @router.get("/metrics")
    async def metrics(request: Request) -> PlainTextResponse:
        return PlainTextResponse(exposition(service, access.open_sockets), media_type="text/plain; version=0.0.4")
