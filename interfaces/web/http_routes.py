"""OpenAI's routes, and those of Open WebUI."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException
from starlette.responses import JSONResponse

from bistream.errors import BistreamError, InvalidInputError, UnknownSpeakerError
from interfaces.audio.formats import AudioFormat, openai_format
from interfaces.audio.recordings import decode_recording
from interfaces.core.errors import TooLargeError
from interfaces.core.service import Caller, SpeechService
from interfaces.core.values import Values, check_values
from interfaces.core.voices import OPENAI_VOICES, Voice
from interfaces.web.answers import error_answer
from interfaces.web.requests import FieldError, SpeechRequest, parse
from interfaces.web.streaming import SpokenResponse, speak

MODELS = ("cosyvoice2", "tts-1", "tts-1-hd", "gpt-4o-mini-tts")
STARTED_AT = int(time.time())
MAX_DECODING = 2  # recordings in memory and decoded at once


def failed(error: BistreamError) -> JSONResponse:
    answer = error_answer(error, getattr(error, "param", None))
    return JSONResponse(answer.body, answer.status, answer.headers)


def routes(service: SpeechService) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/audio/speech")
    async def speech(request: Request) -> Response:
        given = parse(SpeechRequest, await request.body())
        target = at("response_format", lambda: openai_format(given.response_format))
        check_text(service, "input", given.input, given.values)
        as_events = given.stream_format == "sse"
        return await spoken(service, request, given.voice_name, given.input, target, given.values, as_events)

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_model(name) for name in MODELS]}

    @router.get("/v1/models/{name}")
    async def model(name: str) -> Response:
        if name in MODELS:
            return JSONResponse(_model(name))
        answer = error_answer(UnknownSpeakerError(f"There is no model {name[:64]!r}; list the models with GET /v1/models."), "model")
        answer.body["error"]["code"] = "model_not_found"
        return JSONResponse(answer.body, answer.status, answer.headers)

    @router.get("/v1/audio/models")
    async def audio_models() -> dict[str, Any]:
        return {"models": [{"id": name} for name in MODELS]}

    _add_voices(router, service)
    return router


def _add_voices(router: APIRouter, service: SpeechService) -> None:
    decoding = asyncio.Semaphore(MAX_DECODING)

    @router.get("/v1/audio/voices")
    async def voices(request: Request) -> dict[str, Any]:
        found = service.voices.all_of(caller_of(request).key)
        names = {voice.name for voice in found}
        others = [*service.voices.aliases, *(OPENAI_VOICES if found else ())]
        aliases = [{"id": name, "name": name, "is_alias": True} for name in dict.fromkeys(others) if name not in names]
        return {"object": "list", "voices": [*(_voice(voice) for voice in found), *aliases]}

    @router.post("/v1/audio/voices")
    async def add_voice(request: Request) -> dict[str, Any]:
        service.check_serving()
        limits = service.limits
        async with _upload(request) as (name, transcript, file), decoding:
            data = await file.read(limits.max_upload_bytes + 1)
            if len(data) > limits.max_upload_bytes:
                raise TooLargeError(f"The recording is larger than {limits.max_upload_bytes} bytes; upload a shorter or compressed one.")
            samples = await asyncio.to_thread(decode_recording, data, limits.min_recording_s, limits.max_recording_s)
        return _voice(await asyncio.to_thread(service.voices.add, name, samples, transcript, caller_of(request).key))

    @router.delete("/v1/audio/voices/{voice_id}")
    async def delete_voice(request: Request, voice_id: str) -> dict[str, Any]:
        await asyncio.to_thread(service.voices.delete, voice_id, caller_of(request).key)
        return {"id": voice_id, "object": "audio.voice.deleted", "deleted": True}


def check_text(service: SpeechService, field: str, text: str, values: Values) -> None:
    """Raises ``FieldError`` for a text that cannot be spoken, and for a value out of range. field: the text's."""
    if not text.strip():
        raise FieldError(f"{field} holds nothing but blanks; send words.", param=field)
    if len(text) > service.limits.max_text_chars:
        raise FieldError(f"{field} is longer than {service.limits.max_text_chars} characters; split it into several requests.", param=field)
    for name, value in values.items():
        field = "instructions" if name == "instruct_text" else name
        at(field, lambda name=name, value=value: check_values({name: value}, service.servers.max_text_chars))


async def spoken(
    service: SpeechService,
    request: Request,
    voice: str,
    text: str,
    target: AudioFormat,
    values: Values,
    as_events: bool = False,
    gain: float = 1.0,
) -> Response:
    """A text that was checked, as the bytes of its audio or as OpenAI's events."""
    try:
        made, first = await speak(service, caller_of(request), voice, text, target, values, gain, request.receive)
    except UnknownSpeakerError as error:
        answer = error_answer(error, "voice")
        return JSONResponse(answer.body, answer.status, answer.headers)
    return SpokenResponse(made, first, target.content_type, as_events, service.limits.send_timeout_s)


@contextlib.asynccontextmanager
async def _upload(request: Request) -> AsyncIterator[tuple[str, str, UploadFile]]:
    """Name, transcript (``transcript`` or ``ref_text``) and file of the form, which lies on disk unless it is small."""
    try:
        form = await request.form(max_files=2, max_fields=16, max_part_size=16 * 1024)
    except MultiPartException:
        raise InvalidInputError("The body is not a multipart form; send name, transcript and audio_sample.") from None
    try:
        file = form.get("audio_sample")
        name, transcript = form.get("name"), form.get("transcript") or form.get("ref_text")
        if not isinstance(file, UploadFile):
            raise FieldError("audio_sample must be a file with the recording; add it to the form.", param="audio_sample")
        if not isinstance(name, str) or not name.strip():
            raise FieldError("name must be the name of the voice; add it to the form.", param="name")
        if not isinstance(transcript, str) or not transcript.strip():
            raise FieldError("transcript must be what is said in the recording; add it to the form.", param="transcript")
        yield name, transcript, file
    finally:
        await form.close()


def at(param: str, act: Any) -> Any:
    """What ``act`` returns; its ``InvalidInputError`` names the field."""
    try:
        return act()
    except InvalidInputError as error:
        raise FieldError(error.sentence, param=param) from None


def caller_of(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": STARTED_AT, "owned_by": "bistream"}


def _voice(voice: Voice) -> dict[str, Any]:
    return {"id": voice.id, "object": "audio.voice", "created_at": voice.created_at, "name": voice.name, "type": "audio_sample"}
