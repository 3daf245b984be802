"""What the packages of ElevenLabs and Cartesia ask for besides speech: voices (list, look up, clone, delete) and the user.

Fields are those that the packages' types require, and those that applications read (docs/interfaces.md); the rest is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from bistream.errors import InvalidInputError
from interfaces.core.service import SpeechService
from interfaces.core.voice import UPLOAD, Voice
from interfaces.web.http_routes import caller_of, told_secret
from interfaces.web.model_routes import languages_of
from interfaces.web.router import Router
from interfaces.web.uploads import Uploads

MOST_ON_A_PAGE = 100
_ELEVENLABS_SETTINGS = {"stability": 0.5, "similarity_boost": 0.75, "style": 0.0, "use_speaker_boost": False, "speed": 1.0}
_SUBSCRIPTION = {
    "tier": "self-hosted",
    "status": "active",
    "character_count": 0,
    "character_limit": 2**31 - 1,
    "max_credit_limit_extension": "unlimited",
    "can_extend_character_limit": False,
    "allowed_to_extend_character_limit": False,
    "voice_slots_used": 0,
    "professional_voice_slots_used": 0,
    "professional_voice_slots_used_in_workspace": 0,
    "voice_add_edit_counter": 0,
    "professional_voice_limit": 0,
    "can_extend_voice_limit": False,
    "can_use_instant_voice_cloning": True,
    "can_use_professional_voice_cloning": False,
    "current_overage": {"amount": "0", "currency": "usd"},
}


def routes(service: SpeechService, uploads: Uploads) -> Router:
    router = Router()
    _add_elevenlabs(router, service, uploads)
    _add_elevenlabs_user(router, service)
    _add_cartesia(router, service, uploads)
    return router


def _add_elevenlabs(router: Router, service: SpeechService, uploads: Uploads) -> None:
    @router.get("/v1/voices")
    async def voices(request: Request) -> dict[str, Any]:
        return {"voices": [_elevenlabs_voice(voice) for voice in service.voices.all_of(caller_of(request).key)]}

    @router.get("/v2/voices")
    async def search(request: Request) -> dict[str, Any]:
        query = request.query_params
        ids, category = query.getlist("voice_ids"), query.get("category")
        found = _named_like(service.voices.all_of(caller_of(request).key), query.get("search", ""))
        found = [voice for voice in found if not ids or voice.id in ids]
        found = [voice for voice in found if category is None or _elevenlabs_voice(voice)["category"] == category]
        page, has_more = _page(found, query.get("page_size", "10"), query.get("next_page_token"), None)
        return {
            "voices": [_elevenlabs_voice(voice) for voice in page],
            "has_more": has_more,
            "total_count": len(found),
            "next_page_token": page[-1].id if has_more else None,
        }

    @router.get("/v1/voices/settings/default")
    async def default_settings(request: Request) -> dict[str, Any]:
        return _ELEVENLABS_SETTINGS

    @router.get("/v1/voices/{voice_id}/settings")
    async def settings(request: Request, voice_id: str) -> dict[str, Any]:
        service.find_voice(voice_id, caller_of(request))
        return _ELEVENLABS_SETTINGS

    @router.get("/v1/voices/{voice_id}")
    async def voice(request: Request, voice_id: str) -> dict[str, Any]:
        return _elevenlabs_voice(service.find_voice(voice_id, caller_of(request)))

    @router.post("/v1/voices/add")
    async def add(request: Request) -> dict[str, Any]:
        """Of several files the first one counts; without a transcript, the voice speaks as another language's would."""
        added = await uploads.take(request, ("files", "files[]"), is_said_needed=False)
        return {"voice_id": added.id, "requires_verification": False, **told_secret(added)}

    @router.delete("/v1/voices/{voice_id}")
    async def delete(request: Request, voice_id: str) -> dict[str, Any]:
        await asyncio.to_thread(service.voices.delete, voice_id, caller_of(request))
        return {"status": "ok"}


def _add_elevenlabs_user(router: Router, service: SpeechService) -> None:
    subscription = {**_SUBSCRIPTION, "voice_limit": service.limits.max_voices}

    @router.get("/v1/user")
    async def user(request: Request) -> dict[str, Any]:
        return {
            "user_id": caller_of(request).key or "everybody",
            "workspace_id": "bistream",
            "subscription": subscription,
            "is_new_user": False,
            "can_use_delayed_payment_methods": False,
            "is_onboarding_completed": True,
            "is_onboarding_checklist_completed": True,
            "created_at": 0,
            "seat_type": "workspace_member",
        }

    @router.get("/v1/user/subscription")
    async def told_subscription(request: Request) -> dict[str, Any]:
        return subscription


def _add_cartesia(router: Router, service: SpeechService, uploads: Uploads) -> None:
    def told(voice: Voice) -> dict[str, Any]:
        return _cartesia_voice(voice, languages_of(service))

    @router.get("/voices")
    @router.get("/voices/")
    async def voices(request: Request) -> dict[str, Any]:
        query = request.query_params
        found = _named_like(service.voices.all_of(caller_of(request).key), query.get("q", ""))
        if query.get("is_owner") in ("true", "false"):
            found = [voice for voice in found if (voice.kind == UPLOAD) == (query["is_owner"] == "true")]
        page, has_more = _page(found, query.get("limit", "10"), query.get("starting_after"), query.get("ending_before"))
        return {"data": [told(voice) for voice in page], "has_more": has_more, "next_page": page[-1].id if has_more else None}

    @router.get("/voices/{voice_id}")
    async def voice(request: Request, voice_id: str) -> dict[str, Any]:
        return told(service.find_voice(voice_id, caller_of(request)))

    @router.post("/voices/clone")
    async def clone(request: Request) -> dict[str, Any]:
        added = await uploads.take(request, ("clip",), is_said_needed=False)
        return {**told(added), "user_id": caller_of(request).key or "everybody", **told_secret(added)}

    @router.delete("/voices/{voice_id}")
    async def delete(request: Request, voice_id: str) -> Response:
        await asyncio.to_thread(service.voices.delete, voice_id, caller_of(request))
        return Response(status_code=204)


def _elevenlabs_voice(voice: Voice) -> dict[str, Any]:
    return {"voice_id": voice.id, "name": voice.name, "category": "cloned" if voice.kind == UPLOAD else "premade"}


def _cartesia_voice(voice: Voice, languages: Sequence[str]) -> dict[str, Any]:
    is_own = voice.kind == UPLOAD
    return {
        "id": voice.id,
        "name": voice.name,
        "description": "",
        "tagline": "",
        "access": "private" if is_own else "public",
        "visibility": "owner" if is_own else "all",
        "is_owner": is_own,
        "is_public": not is_own,
        "created_at": datetime.fromtimestamp(voice.created_at, UTC).isoformat().replace("+00:00", "Z"),
        "language": languages[0],
        "locales": [{"locale": code, "is_native": code == languages[0]} for code in languages],
        "gender": None,
        "country": None,
        "preview_file_url": None,
    }


def _named_like(voices: Sequence[Voice], words: str) -> list[Voice]:
    wanted = words.strip().casefold()
    return [voice for voice in voices if wanted in voice.name.casefold() or wanted == voice.id.casefold()]


def _page(voices: Sequence[Voice], size: str, after: str | None, before: str | None) -> tuple[Sequence[Voice], bool]:
    """Those behind, or before, the voice of an id; and whether there are more in this direction. Raises ``InvalidInputError``."""
    if len(size) > 3 or not size.isascii() or not size.isdecimal() or not 1 <= int(size) <= MOST_ON_A_PAGE:
        raise InvalidInputError(f"The size of a page is a number from 1 to {MOST_ON_A_PAGE}; correct it.")
    ids, count = [voice.id for voice in voices], int(size)
    for cursor in (after, before):
        if cursor and cursor not in ids:
            raise InvalidInputError("The page begins at a voice that is not in the list; begin again with the first page.")
    if before:
        end = ids.index(before)
        return voices[max(0, end - count) : end], end > count
    begin = ids.index(after) + 1 if after else 0
    return voices[begin : begin + count], begin + count < len(voices)
