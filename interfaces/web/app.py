"""The application: routes, the guard before them, health, metrics and the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse

from bistream.errors import BistreamError, EngineError
from interfaces.core.service import DRAIN_RETRY_AFTER_S, SpeechService
from interfaces.settings import InterfaceLimits
from interfaces.web import http_routes, model_routes, socket_routes, vendor_routes, voice_routes
from interfaces.web.access import Access
from interfaces.web.answers import error_response
from interfaces.web.guard import Guard
from interfaces.web.metrics import exposition
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
    app = FastAPI(title="bistream", docs_url=None, redoc_url=None, openapi_url=None)
    uploads = Uploads(service)
    app.include_router(http_routes.routes(service, uploads))
    app.include_router(model_routes.routes(service))
    app.include_router(voice_routes.routes(service, uploads))
    app.include_router(vendor_routes.routes(service))
    app.include_router(socket_routes.routes(service, access))
    _add_health(app, service, access)
    app.mount("/page", StaticFiles(directory=PAGE))

    @app.get("/")
    async def page() -> FileResponse:
        return FileResponse(PAGE / "index.html", headers=PAGE_HEADERS)

    @app.exception_handler(BistreamError)
    async def on_error(request: Request, error: BistreamError) -> Response:
        return error_response(error, getattr(error, "param", None))

    @app.exception_handler(HTTPException)
    async def on_http_error(request: Request, error: HTTPException) -> Response:
        message = {404: "There is no such address; docs/interfaces.md lists them.", 405: "This address has other methods."}
        sentence = message.get(error.status_code, "The request cannot be answered; correct it.")
        body = {"error": {"message": sentence, "type": "invalid_request_error", "param": None, "code": None}}
        return JSONResponse(body, error.status_code, {"x-should-retry": "false"})

    @app.exception_handler(ClientDisconnect)
    async def on_gone(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=499)  # nobody reads it

    @app.exception_handler(Exception)
    async def on_fault(request: Request, error: Exception) -> Response:
        return error_response(EngineError("The gateway has failed at this request; try again."))

    guarded: Any = Guard(app, access, service, limits)
    if allowed_origins:
        guarded = CORSMiddleware(guarded, allow_origins=list(allowed_origins), allow_methods=["GET", "POST", "DELETE"], allow_headers=["*"])
    return guarded


def _add_health(app: FastAPI, service: SpeechService, access: Access) -> None:
    @app.get("/health/live")
    async def live() -> dict[str, str]:
        return {"status": "live"}

    @app.get("/health/ready")
    async def ready() -> Response:
        if service.is_ready():
            return JSONResponse({"status": "ready"})
        status = "draining" if service.drains.is_set() else "no server takes sessions"
        return JSONResponse({"status": status}, 503, {"retry-after": str(DRAIN_RETRY_AFTER_S)})

    @app.get("/v1/load")
    async def load() -> dict[str, Any]:
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

    @app.get("/metrics")
    async def metrics() -> PlainTextResponse:
        return PlainTextResponse(exposition(service, access.open_sockets), media_type="text/plain; version=0.0.4")
