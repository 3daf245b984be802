"""Lists of models. ``/v1/models`` is an address of OpenAI's and of ElevenLabs': each client gets its own form."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from bistream.errors import UnknownSpeakerError
from interfaces.core.service import SpeechService
from interfaces.web.answers import error_object
from interfaces.web.router import Router

MODELS = ("cosyvoice2", "tts-1", "tts-1-hd", "gpt-4o-mini-tts")
ELEVENLABS_MODELS = ("eleven_multilingual_v2", "eleven_flash_v2_5", "eleven_flash_v2", "eleven_turbo_v2_5", "eleven_v3", "cosyvoice2")
STARTED_AT = int(time.time())
FAMILIES_LANGUAGES = ("en", "ja", "ko", "zh")  # that both released families speak, for a checkpoint that names none
_LANGUAGE_NAMES = {
    "de": "German",
    "en": "English",
    "es": "Spanish",
    "fr": "French",
    "it": "Italian",
    "ja": "Japanese",
    "ko": "Korean",
    "ru": "Russian",
    "zh": "Chinese",
}


def routes(service: SpeechService) -> Router:
    router = Router()

    @router.get("/v1/models")
    async def models(request: Request) -> Any:
        if "xi-api-key" in request.headers:  # as ElevenLabs' client sends its key, and only that one
            return [_elevenlabs_model(name, service) for name in ELEVENLABS_MODELS]
        return {"object": "list", "data": [_model(name) for name in MODELS]}

    @router.get("/v1/models/{name}")
    async def model(request: Request, name: str) -> Response:
        if name in MODELS:
            return JSONResponse(_model(name))
        error = UnknownSpeakerError(f"There is no model {name[:64]!r}; list the models with GET /v1/models.")
        body = {"error": {**error_object(error, "model"), "code": "model_not_found"}}
        return JSONResponse(body, 404, {"x-should-retry": "false"})

    @router.get("/v1/audio/models")
    async def audio_models(request: Request) -> dict[str, Any]:
        return {"models": [{"id": name} for name in MODELS]}

    return router


def languages_of(service: SpeechService) -> list[str]:
    return sorted(service.servers.languages) or list(FAMILIES_LANGUAGES)


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": STARTED_AT, "owned_by": "bistream"}


def _elevenlabs_model(name: str, service: SpeechService) -> dict[str, Any]:
    return {
        "model_id": name,
        "name": name,
        "description": "",
        "can_do_text_to_speech": True,
        "can_do_voice_conversion": False,
        "can_be_finetuned": False,
        "can_use_style": False,
        "can_use_speaker_boost": False,
        "serves_pro_voices": False,
        "requires_alpha_access": False,
        "token_cost_factor": 1.0,
        "languages": [{"language_id": code, "name": _LANGUAGE_NAMES.get(code, code)} for code in languages_of(service)],
        "maximum_text_length_per_request": service.limits.max_text_chars,
    }
