"""Addresses and the functions behind them, as routes of Starlette."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

Answering = TypeVar("Answering", bound=Callable[..., Awaitable[Any]])


class Router:
    """A function gets the request, or the WebSocket, and by name the variable parts of its address. Of a request it returns a ``Response``,
    or what becomes JSON."""

    def __init__(self) -> None:
        self.routes: list[BaseRoute] = []

    def get(self, path: str) -> Callable[[Answering], Answering]:
        return self._adding(path, "GET")

    def post(self, path: str) -> Callable[[Answering], Answering]:
        return self._adding(path, "POST")

    def delete(self, path: str) -> Callable[[Answering], Answering]:
        return self._adding(path, "DELETE")

    def websocket(self, path: str) -> Callable[[Answering], Answering]:
        def add(function: Answering) -> Answering:
            async def serve(websocket: WebSocket) -> None:
                await function(websocket, **websocket.path_params)

            self.routes.append(WebSocketRoute(path, serve))
            return function

        return add

    def _adding(self, path: str, method: str) -> Callable[[Answering], Answering]:
        def add(function: Answering) -> Answering:
            async def answer(request: Request) -> Response:
                found = await function(request, **request.path_params)
                return found if isinstance(found, Response) else JSONResponse(found)

            self.routes.append(Route(path, answer, methods=[method]))
            return function

        return add
