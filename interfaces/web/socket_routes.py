"""The WebSocket routes: each makes its protocol from the address and runs it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from bistream.contract.checks import SSML
from bistream.contract.lexicon import check_lexicon
from bistream.errors import BistreamError, BusyError, UnauthenticatedError
from interfaces.audio.formats import deepgram_format, elevenlabs_format
from interfaces.core.caller import Caller
from interfaces.core.service import SpeechService
from interfaces.core.values import Values
from interfaces.protocols.actions import POLICY_VIOLATION, SocketProtocol
from interfaces.protocols.cartesia import Cartesia
from interfaces.protocols.dashscope import DashScope
from interfaces.protocols.deepgram import Deepgram, DeepgramOptions, deepgram_speed
from interfaces.protocols.deepgram_v1 import DeepgramV1
from interfaces.protocols.elevenlabs import ElevenLabs, ElevenLabsOptions, key_headers, refusal
from interfaces.settings import InterfaceLimits
from interfaces.web.access import Access
from interfaces.web.answers import error_response
from interfaces.web.conversation import GOODBYE, Conversation
from interfaces.web.guard import refuse
from interfaces.web.router import Router

KEY_TIMEOUT_S = 10.0  # for a first message with a key


class StarletteSocket:
    """``conversation.Socket`` on a WebSocket of Starlette's."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        self._next: str | bytes | None = None

    def put_back(self, message: str | bytes) -> None:
        """``receive`` gives it again."""
        self._next = message

    async def receive(self) -> str | bytes | None:
        found, self._next = self._next, None
        if found is not None:
            return found
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            return None
        text = message.get("text")
        return text if text is not None else bytes(message.get("bytes") or b"")

    async def send(self, message: str | bytes) -> None:
        if self._websocket.application_state is not WebSocketState.CONNECTED:
            return
        try:
            await (self._websocket.send_bytes(message) if isinstance(message, bytes) else self._websocket.send_text(message))
        except (WebSocketDisconnect, RuntimeError):
            pass  # gone; ``receive`` says so

    async def close(self, code: int, reason: str) -> None:
        if self._websocket.application_state is WebSocketState.CONNECTED:
            try:
                await self._websocket.close(code, reason)
            except (WebSocketDisconnect, RuntimeError):
                pass


class _Runner:
    def __init__(self, service: SpeechService, access: Access) -> None:
        self._service = service
        self._access = access

    async def run(self, websocket: WebSocket, make: Callable[[], SocketProtocol], voice: str | None = None) -> None:
        """voice: refused before the socket opens where there is none of this name, unless it is not known yet who asks."""
        state = websocket.state
        known: Caller | None = state.caller
        caller = known or Caller(None, state.address, state.trace)
        try:
            protocol = make()
            if voice is not None and known is not None:
                await asyncio.to_thread(self._service.find_voice, voice, caller)
            self._access.enter(caller)
        except BistreamError as error:
            self._service.tell(error, caller)
            await refuse(websocket.scope, websocket.receive, websocket.send, error_response(error))
            return
        entered = [caller]
        try:
            await websocket.accept(state.subprotocol)
            socket = StarletteSocket(websocket)
            if known is not None or await self._identify(socket, entered):
                await Conversation(socket, protocol, self._service, entered[0]).run()
        finally:
            self._access.leave(entered[0])

    async def _identify(self, socket: StarletteSocket, entered: list[Caller]) -> bool:
        """Whether the first message says who it is; a drain does not wait for it. entered: for whom the socket is counted."""
        asking = asyncio.ensure_future(identified(socket, self._access, entered[0]))
        draining = asyncio.ensure_future(self._service.drains.wait())
        try:
            await asyncio.wait([asking, draining], return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                await socket.close(GOODBYE.code, GOODBYE.reason)
            elif (caller := asking.result()) is not None:
                self._access.enter(caller)
                self._access.leave(entered[0])
                entered[0] = caller
                return True
        except BusyError as error:  # the key has its sockets
            self._service.tell(error, entered[0])
            await _turn_away(socket, error)
        finally:
            asking.cancel()
            draining.cancel()
        return False


async def identified(socket: StarletteSocket, access: Access, stranger: Caller) -> Caller | None:
    """Of a socket whose API key comes with its first message (ElevenLabs), since browsers cannot set headers: who the stranger is. That
    message is put back. None: the socket was refused, or is gone."""
    try:
        async with asyncio.timeout(KEY_TIMEOUT_S):
            first = await socket.receive()
    except TimeoutError:
        first = ""
    if first is None:
        return None
    try:
        caller = replace(access.identify(key_headers(first), stranger.address).caller, trace=stranger.trace)
    except UnauthenticatedError as error:
        await _turn_away(socket, error)
        return None
    socket.put_back(first)
    return caller


async def _turn_away(socket: StarletteSocket, error: BistreamError) -> None:
    """In the form of the protocol, whose socket was accepted before it was known whose it is."""
    await socket.send(json.dumps(refusal(error)))
    await socket.close(POLICY_VIOLATION, error.code.lower())


def routes(service: SpeechService, access: Access) -> Router:
    router = Router()
    runner = _Runner(service, access)
    limits = service.limits

    @router.websocket("/v1/text-to-speech/{voice_id}/stream-input")
    async def stream_input(websocket: WebSocket, voice_id: str) -> None:
        await runner.run(websocket, lambda: ElevenLabs(_elevenlabs_options(websocket, voice_id, False, service)), voice_id)

    @router.websocket("/v1/text-to-speech/{voice_id}/multi-stream-input")
    async def multi_stream_input(websocket: WebSocket, voice_id: str) -> None:
        await runner.run(websocket, lambda: ElevenLabs(_elevenlabs_options(websocket, voice_id, True, service)), voice_id)

    @router.websocket("/v1/speak")
    async def deepgram_v1(websocket: WebSocket) -> None:
        await runner.run(websocket, lambda: DeepgramV1(_deepgram_options(websocket, limits)), websocket.query_params.get("model", ""))

    @router.websocket("/v2/speak")
    async def deepgram(websocket: WebSocket) -> None:
        await runner.run(websocket, lambda: Deepgram(_deepgram_options(websocket, limits)), websocket.query_params.get("model", ""))

    @router.websocket("/tts/websocket")
    async def cartesia(websocket: WebSocket) -> None:
        await runner.run(websocket, lambda: Cartesia(limits.contexts_per_socket, service.lexicons, limits.max_text_chars))

    @router.websocket("/api-ws/v1/inference")
    @router.websocket("/api-ws/v1/inference/")
    async def dashscope(websocket: WebSocket) -> None:
        await runner.run(websocket, DashScope)

    return router


def _elevenlabs_options(websocket: WebSocket, voice: str, is_multi: bool, service: SpeechService) -> ElevenLabsOptions:
    query = websocket.query_params
    target = elevenlabs_format(query.get("output_format", "mp3_44100_128"))
    names = ("auto_mode", "sync_alignment", "enable_ssml_parsing")
    has_sentences, is_cumulative, is_ssml = (query.get(name, "").lower() == "true" for name in names)
    values: Values = {"text_type": SSML} if is_ssml else {}
    most = service.limits.contexts_per_socket
    return ElevenLabsOptions(voice, target, is_multi, has_sentences, is_cumulative, most, values, service.lexicons)


def _deepgram_options(websocket: WebSocket, limits: InterfaceLimits) -> DeepgramOptions:
    query = websocket.query_params
    target = deepgram_format(query.get("encoding", "linear16"), query.get("sample_rate", ""))
    speed, lexicon = deepgram_speed(query.get("speed", "1")), query.get("lexicon", "")
    check_lexicon(lexicon)
    return DeepgramOptions(query.get("model", ""), target, limits.max_text_chars, speed, {"lexicon": lexicon} if lexicon else {})
