"""One utterance over HTTP, as on a WebSocket: the request is the messages of a protocol, and what it sends is the body of the response.

Bytes leave when they are made. A failure before the first one is a status, one after it cuts the connection.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any

from starlette.responses import Response

from bistream.errors import BistreamError, EngineError, UnknownSpeakerError
from interfaces.core.caller import Caller
from interfaces.core.quiet_log import Lines
from interfaces.core.service import SpeechService
from interfaces.core.shares import ShareError
from interfaces.protocols.actions import INTERNAL_ERROR, Action, Close, SocketProtocol
from interfaces.web.answers import error_response
from interfaces.web.conversation import Conversation


class CutConnectionError(Exception):
    """Ends a response that has begun without its proper end: an ordinary end would look like success."""


class _QuietServer(logging.Filter):
    """Of uvicorn's lines: none for what clients cause, and one in ten seconds for each kind of fault of ours."""

    def __init__(self) -> None:
        super().__init__()
        self._faults = Lines(1)

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return "without completing handshake" not in record.getMessage()  # the client has gone meanwhile
        return not isinstance(error, CutConnectionError) and self._faults.take(repr(error)[:200]) is not None


logging.getLogger("uvicorn.error").addFilter(_QuietServer())


class ExchangeResponse(Response):
    """messages: of the client. frame: a message of the protocol that is an object as bytes of the body; empty ones are left out."""

    def __init__(
        self,
        service: SpeechService,
        caller: Caller,
        protocol: SocketProtocol,
        media_type: str,
        messages: Sequence[dict[str, Any]] = (),
        frame: Callable[[dict[str, Any]], bytes] | None = None,
    ) -> None:
        super().__init__(media_type=media_type, headers={"cache-control": "no-store"})
        del self.headers["content-length"]
        self._service = service
        self._caller = caller
        self._protocol = protocol
        self._messages = [json.dumps(message) for message in messages]
        self._frame = frame

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = _Body(self._messages, self._frame, self.raw_headers, receive, send)
        exchange = _Exchange(body, self._protocol, self._service, self._caller)
        await exchange.run()
        if body.is_complete or body.is_left:
            return
        if body.is_begun:
            raise CutConnectionError
        failure = exchange.failure or EngineError("The gateway has failed at this request; try again.")
        if isinstance(failure, ShareError):
            await asyncio.sleep(failure.pause_s)
        await error_response(failure, "voice" if isinstance(failure, UnknownSpeakerError) else None)(scope, receive, send)


class _Body:
    """``conversation.Socket`` on a request and its response."""

    def __init__(self, messages: list[str], frame: Callable[[dict[str, Any]], bytes] | None, headers: Any, receive: Any, send: Any) -> None:
        self.is_begun = self.is_complete = self.is_left = False
        self._messages = messages
        self._frame = frame
        self._headers = headers
        self._receive = receive
        self._send = send

    async def receive(self) -> str | bytes | None:
        if self._messages:
            return self._messages.pop(0)
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.is_left = True
        return None

    async def send(self, message: str | bytes) -> None:
        if not isinstance(message, bytes):
            assert self._frame is not None, "of a protocol that sends objects"
            message = self._frame(json.loads(message))
        if message:
            await self._write(message, more=True)

    async def close(self, code: int, reason: str) -> None:
        if code == Close().code:
            await self._write(b"", more=False)
            self.is_complete = True

    async def _write(self, data: bytes, more: bool) -> None:
        if not self.is_begun:
            self.is_begun = True
            await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
        await self._send({"type": "http.response.body", "body": data, "more_body": more})


class _Exchange(Conversation):
    """Over with its first utterance. failure: what ended that one before anything was sent."""

    def __init__(self, body: _Body, protocol: SocketProtocol, service: SpeechService, caller: Caller) -> None:
        super().__init__(body, protocol, service, caller)
        self.failure: BistreamError | None = None
        self._body = body

    async def _finish(self, name: str) -> None:
        await super()._finish(name)
        await self._close(Close())

    def _told(self, name: str, error: BistreamError) -> Sequence[Action]:
        told = super()._told(name, error)
        if not self._body.is_begun:
            self.failure, told = error, []
        return [*told, Close(INTERNAL_ERROR)]
