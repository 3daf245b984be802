"""Text-to-speech over HTTP as ElevenLabs, Deepgram and Cartesia have it: whole texts, spoken while they are made."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from interfaces.audio.formats import OutputFormat, cartesia_format, deepgram_file_format, elevenlabs_format
from interfaces.core.service import SpeechService
from interfaces.core.text import Item
from interfaces.core.values import Values
from interfaces.protocols.cartesia import Cartesia, cartesia_reading, cartesia_values, cartesia_voice
from interfaces.protocols.cartesia_tags import CartesiaTags
from interfaces.protocols.deepgram import deepgram_speed
from interfaces.protocols.deepgram_controls import DeepgramControls
from interfaces.protocols.elevenlabs import ElevenLabs, ElevenLabsOptions, dictionaries_in
from interfaces.protocols.messages import reading_in
from interfaces.protocols.text_controls import LenientBreakTags
from interfaces.protocols.whole_text import WholeText
from interfaces.web.exchange import ExchangeResponse
from interfaces.web.http_routes import at, caller_of, check_text, spoken
from interfaces.web.requests import CartesiaRequest, DeepgramRequest, ElevenLabsRequest, parse
from interfaces.web.router import Router


def routes(service: SpeechService) -> Router:
    router = Router()
    _add_elevenlabs(router, service)
    _add_deepgram(router, service)
    _add_cartesia(router, service)
    return router


def _add_elevenlabs(router: Router, service: SpeechService) -> None:
    @router.post("/v1/text-to-speech/{voice_id}")
    @router.post("/v1/text-to-speech/{voice_id}/stream")
    async def text_to_speech(request: Request, voice_id: str) -> Response:
        text, target, values = await asked(request)
        items = LenientBreakTags(values).push(text, is_whole=True)
        return spoken(service, request, WholeText(voice_id, items, target, values), target.content_type, values)

    @router.post("/v1/text-to-speech/{voice_id}/stream/with-timestamps")
    async def stream_with_timestamps(request: Request, voice_id: str) -> Response:
        """Lines of JSON; times count from the start of the audio."""
        return await timed(request, voice_id, _timed_line)

    @router.post("/v1/text-to-speech/{voice_id}/with-timestamps")
    async def with_timestamps(request: Request, voice_id: str) -> Response:
        """One object, once all is spoken."""
        return await timed(request, voice_id, _WholeAnswer())

    async def timed(request: Request, voice_id: str, frame: Callable[[dict[str, Any]], bytes]) -> Response:
        text, target, values = await asked(request)
        options = ElevenLabsOptions(voice_id, target, is_multi=False, has_cumulative_alignment=True, values=values)
        messages = [{"text": text}, {"text": ""}]
        return ExchangeResponse(service, caller_of(request), ElevenLabs(options), "application/json", messages, frame)

    async def asked(request: Request) -> tuple[str, OutputFormat, Values]:
        given = parse(ElevenLabsRequest, await request.body())
        name = request.query_params.get("output_format", "mp3_44100_128")
        target = at("output_format", lambda: elevenlabs_format(name))
        field = "pronunciation_dictionary_locators"
        values = at(field, lambda: service.lexicons.added_to(given.values, dictionaries_in(given.model_dump())))
        check_text(service, "text", given.text, values)
        return given.text, target, values


def _timed_line(message: dict[str, Any]) -> bytes:
    if not message.get("audio"):
        return b""
    alignment = message["alignment"] and _in_seconds(message["alignment"])
    line = {"audio_base64": message["audio"], "alignment": alignment, "normalized_alignment": alignment}
    return json.dumps(line, separators=(",", ":")).encode("ascii") + b"\n"


class _WholeAnswer:
    """Messages of one text as one object, which comes with the last of them."""

    def __init__(self) -> None:
        self._audio = bytearray()
        self._alignment: dict[str, list[Any]] | None = None  # None: no character is known to be spoken

    def __call__(self, message: dict[str, Any]) -> bytes:
        if message.get("audio"):
            self._audio += base64.b64decode(message["audio"])
            if message["alignment"]:
                for name, values in _in_seconds(message["alignment"]).items():
                    self._alignment = self._alignment or {}
                    self._alignment.setdefault(name, []).extend(values)
        if not message.get("isFinal"):
            return b""
        data = base64.b64encode(self._audio).decode("ascii")
        whole = {"audio_base64": data, "alignment": self._alignment, "normalized_alignment": self._alignment}
        return json.dumps(whole, separators=(",", ":")).encode("ascii")


def _in_seconds(alignment: dict[str, Any]) -> dict[str, Any]:
    starts, durations = alignment["charStartTimesMs"], alignment["charDurationsMs"]
    return {
        "characters": alignment["chars"],
        "character_start_times_seconds": [start / 1000 for start in starts],
        "character_end_times_seconds": [(start + duration) / 1000 for start, duration in zip(starts, durations, strict=True)],
    }


def _add_deepgram(router: Router, service: SpeechService) -> None:
    @router.post("/v1/speak")
    async def speak(request: Request) -> Response:
        given, query = parse(DeepgramRequest, await request.body()), request.query_params
        container, sample_rate, bit_rate = (query.get(name, "") for name in ("container", "sample_rate", "bit_rate"))
        encoding = query.get("encoding", "linear16" if container == "wav" else "mp3")
        target = deepgram_file_format(encoding, container, sample_rate, bit_rate)
        speed = at("speed", lambda: deepgram_speed(query.get("speed", "1")))
        values: Values = {} if speed == 1 else {"speed": speed}
        values |= reading_in(dict(query))
        check_text(service, "text", given.text, values)
        controls = DeepgramControls(values, is_http=True)
        items = at("text", lambda: controls.push(given.text, is_whole=True))
        values |= at("text", controls.lexicon)
        return spoken(service, request, WholeText(query.get("model", ""), items, target, values), target.content_type, values)


def _add_cartesia(router: Router, service: SpeechService) -> None:
    def checked(given: CartesiaRequest) -> tuple[dict[str, Any], list[Item], Values, float]:
        """The request as a message of the WebSocket, and its text, values and gain."""
        message = given.model_dump(exclude_none=True)
        at("voice", lambda: cartesia_voice(message))
        values, gain = at("generation_config", lambda: cartesia_values(message))
        values |= at("pronunciation_dict_id", lambda: cartesia_reading(message, service.lexicons))
        check_text(service, "transcript", given.transcript, values)
        items = at("transcript", lambda: CartesiaTags(values).push(given.transcript, is_whole=True))
        return message, items, values, gain

    @router.post("/tts/bytes")
    async def as_bytes(request: Request) -> Response:
        given = parse(CartesiaRequest, await request.body())
        message, items, values, gain = checked(given)
        target = at("output_format", lambda: cartesia_format(given.output_format))
        return spoken(service, request, WholeText(cartesia_voice(message), items, target, values, gain), target.content_type, values)

    @router.post("/tts/sse")
    async def as_events(request: Request) -> Response:
        given = parse(CartesiaRequest, await request.body())
        message, *_ = checked(given)
        at("output_format", lambda: cartesia_format(given.output_format, is_raw=True))
        cartesia = Cartesia(1, service.lexicons, service.limits.max_text_chars)
        message["context_id"] = given.context_id or caller_of(request).trace.request_id
        return ExchangeResponse(service, caller_of(request), cartesia, "text/event-stream", [message], _event)


def _event(message: dict[str, Any]) -> bytes:
    return f"event: {message['type']}\ndata: {json.dumps(message, separators=(',', ':'))}\n\n".encode("ascii")
