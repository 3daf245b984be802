"""One utterance of a WebSocket protocol over HTTP: the request is its messages, and what it sends is the body of the response."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from starlette.responses import Response

from bistream.errors import BistreamError
from interfaces.core.caller import Caller
from interfaces.core.service import SpeechService
from interfaces.protocols.actions import INTERNAL_ERROR, Action, Close, Made, SocketProtocol
from interfaces.web.answers import error_response
from interfaces.web.conversation import Conversation
from interfaces.web.streaming import CutConnectionError, disconnected


class ExchangeResponse(Response):
    """frame: a message of the protocol as bytes of the body; empty ones are left out. A failure before the first byte is a status."""

    def __init__(
        self,
        service: SpeechService,
        caller: Caller,
        protocol: SocketProtocol,
        messages: Sequence[dict[str, Any]],
        frame: Callable[[dict[str, Any]], bytes],
        media_type: str,
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
        protocol = _OneUtterance(self._protocol, body)
        await Conversation(body, protocol, self._service, self._caller).run()
        if protocol.failure is not None and not body.is_begun:
            await error_response(protocol.failure)(scope, receive, send)
        elif not body.is_complete and not body.is_left:
            raise CutConnectionError


class _Body:
    """``conversation.Socket`` on a request and its response."""

    def __init__(self, messages: list[str], frame: Callable[[dict[str, Any]], bytes], headers: Any, receive: Any, send: Any) -> None:
        self.is_begun = self.is_complete = self.is_left = False
        self._messages = messages
        self._frame = frame
        self._headers = headers
        self._receive = receive
        self._send = send

    async def receive(self) -> str | bytes | None:
        if self._messages:
            return self._messages.pop(0)
        await disconnected(self._receive)
        self.is_left = True
        return None

    async def send(self, message: str | bytes) -> None:
        data = message if isinstance(message, bytes) else self._frame(json.loads(message))
        if data:
            await self._write(data, more=True)

    async def close(self, code: int, reason: str) -> None:
        if code == Close().code:
            await self._write(b"", more=False)
            self.is_complete = True

    async def _write(self, data: bytes, more: bool) -> None:
        if not self.is_begun:
            self.is_begun = True
            await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
        await self._send({"type": "http.response.body", "body": data, "more_body": more})


class _OneUtterance:
    """A protocol that is over with its first utterance. failure: what ended that one before anything was sent."""

    def __init__(self, protocol: SocketProtocol, body: _Body) -> None:
        self.failure: BistreamError | None = None
        self._protocol = protocol
        self._body = body

    @property
    def is_idle(self) -> bool:
        return self._protocol.is_idle

    def opened(self) -> Sequence[Action]:
        return self._protocol.opened()

    def received(self, message: str | bytes) -> Sequence[Action]:
        return self._protocol.received(message)

    def audio(self, speech: str, made: Made) -> Sequence[Action]:
        return self._protocol.audio(speech, made)

    def flushed(self, speech: str) -> Sequence[Action]:
        return self._protocol.flushed(speech)

    def finished(self, speech: str) -> Sequence[Action]:
        return [*self._protocol.finished(speech), Close()]

    def failed(self, speech: str, error: BistreamError) -> Sequence[Action]:
        told = self._protocol.failed(speech, error)
        if not self._body.is_begun:
            self.failure = error
            told = []
        return [*told, Close(INTERNAL_ERROR)]
