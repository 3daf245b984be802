"""OpenAI's routes, and those of Open WebUI."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from bistream.errors import InvalidInputError
from interfaces.audio.formats import checked, openai_format
from interfaces.core.caller import Caller
from interfaces.core.service import NOT_INSTRUCTED, SpeechService
from interfaces.core.values import Values, check_values
from interfaces.core.voice import Voice
from interfaces.core.voice_names import OPENAI_VOICES
from interfaces.protocols.whole_text import WholeText, WholeTextEvents
from interfaces.web.answers import error_object
from interfaces.web.exchange import ExchangeResponse
from interfaces.web.requests import FieldError, SpeechRequest, parse
from interfaces.web.router import Router
from interfaces.web.uploads import Uploads

WARNING_HEADER = "x-bistream-warning"


def routes(service: SpeechService, uploads: Uploads) -> Router:
    router = Router()

    @router.post("/v1/audio/speech")
    async def speech(request: Request) -> Response:
        given = parse(SpeechRequest, await request.body())
        target = at("response_format", lambda: openai_format(given.response_format))
        if given.sample_rate is not None:
            target = at("sample_rate", lambda: checked(target.codec, given.sample_rate, None))
        check_text(service, "input", given.input, given.values)
        if given.stream_format == "sse":
            events = WholeTextEvents(given.voice_name, given.input, target, given.values, service.servers.tokens_per_second, error_object)
            return spoken(service, request, events, "text/event-stream", given.values)
        return spoken(service, request, WholeText(given.voice_name, [given.input], target, given.values), target.content_type, given.values)

    _add_voices(router, service, uploads)
    return router


def _add_voices(router: Router, service: SpeechService, uploads: Uploads) -> None:
    @router.get("/v1/audio/voices")
    async def voices(request: Request) -> dict[str, Any]:
        found = service.voices.all_of(caller_of(request).key)
        names = {voice.name for voice in found}
        others = [*service.voices.aliases, *(OPENAI_VOICES if found else ())]
        aliases = [{"id": name, "name": name, "is_alias": True} for name in dict.fromkeys(others) if name not in names]
        default, servers = service.voices.default_of(caller_of(request).key), service.servers
        common = {"languages": sorted(servers.languages), "can_be_instructed": servers.can_be_instructed}
        voices = [{**_voice(voice), "kind": voice.kind, "is_default": voice == default, **common} for voice in found]
        return {"object": "list", "voices": [*voices, *aliases]}

    @router.post("/v1/audio/voices")
    async def add_voice(request: Request) -> dict[str, Any]:
        added = await uploads.take(request, ("audio_sample",), is_said_needed=True)
        return {**_voice(added), **told_secret(added)}

    @router.delete("/v1/audio/voices/{voice_id}")
    async def delete_voice(request: Request, voice_id: str) -> dict[str, Any]:
        await asyncio.to_thread(service.voices.delete, voice_id, caller_of(request))
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


def spoken(service: SpeechService, request: Request, protocol: WholeText, media_type: str, values: Values) -> Response:
    """A text that was checked."""
    response = ExchangeResponse(service, caller_of(request), protocol, media_type)
    if "instruct_text" in values and not service.servers.can_be_instructed:
        response.headers[WARNING_HEADER] = NOT_INSTRUCTED
    return response


def at(param: str, act: Any) -> Any:
    """What ``act`` returns; its ``InvalidInputError`` names the field."""
    try:
        return act()
    except InvalidInputError as error:
        raise FieldError(error.sentence, param=param) from None


def caller_of(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


def told_secret(added: Voice) -> dict[str, str]:
    """In the answer to an upload without an API key, and nowhere else."""
    return {} if added.secret is None else {"secret": added.secret}


def _voice(voice: Voice) -> dict[str, Any]:
    return {"id": voice.id, "object": "audio.voice", "created_at": voice.created_at, "name": voice.name, "type": "audio_sample"}
