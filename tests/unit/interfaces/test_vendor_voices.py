"""What the vendors' packages ask for besides speech has the fields that their types require (elevenlabs 2.78.0, cartesia 4.2.0)."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from bistream.contract.voices import PRESET, ListedVoice
from gateway.keys import Keys
from interfaces.core.voices import VoiceStore
from interfaces.settings import InterfaceLimits
from tests.unit.interfaces.rig import SAMPLES_PER_CHARACTER, ReadyServer, Running, reading, running
from tests.unit.interfaces.test_http import ask, multipart
from tests.unit.interfaces.test_vendor_http import cartesia
from tests.unit.interfaces.vendors import ALL, begin, finish

KEY = {"xi-api-key": "any"}
RECORDING = (Path(__file__).resolve().parents[3] / "assets/reference.wav").read_bytes()
NAMES = ["nora", "felix", *(f"voice{number}" for number in range(10))]
NUMBER, TEXT, FLAG = (int, float), str, bool
SUBSCRIPTION: dict[str, Any] = {
    **dict.fromkeys(("tier", "status"), TEXT),
    **dict.fromkeys(("character_count", "character_limit", "voice_slots_used", "voice_limit", "voice_add_edit_counter"), NUMBER),
    **dict.fromkeys(("professional_voice_slots_used", "professional_voice_slots_used_in_workspace", "professional_voice_limit"), NUMBER),
    **dict.fromkeys(("can_extend_character_limit", "allowed_to_extend_character_limit", "can_extend_voice_limit"), FLAG),
    **dict.fromkeys(("can_use_instant_voice_cloning", "can_use_professional_voice_cloning"), FLAG),
    "max_credit_limit_extension": (int, str),
    "current_overage": dict,
}
USER = {
    **dict.fromkeys(("user_id", "workspace_id", "seat_type"), TEXT),
    **dict.fromkeys(
        ("is_new_user", "can_use_delayed_payment_methods", "is_onboarding_completed", "is_onboarding_checklist_completed"), FLAG
    ),
    "created_at": NUMBER,
    "subscription": dict,
}
CARTESIA_VOICE: dict[str, Any] = {
    **dict.fromkeys(("id", "access", "created_at", "description", "language", "name", "tagline", "visibility"), TEXT),
    "is_owner": FLAG,
    "locales": list,
}


@pytest.fixture(scope="module")
def server() -> Iterator[ReadyServer]:
    with reading() as made:
        made.voices, made.card = [ListedVoice(name, PRESET, name == "nora") for name in NAMES], {"languages": "en"}
        yield made


@pytest.fixture(scope="module")
def front(server: ReadyServer) -> Iterator[Running]:
    with running(server.address, voices=VoiceStore()) as made:
        yield made


def get(front: Running, path: str, headers: dict[str, str] | None = None) -> Any:
    status, _, data = ask(front, "GET", path, headers=headers)
    assert status == 200, data
    return json.loads(data)


def check(found: dict[str, Any], required: dict[str, Any]) -> None:
    for name, kind in required.items():
        assert isinstance(found[name], kind), name


def test_elevenlabs_lists_pages_of_voices(front: Running) -> None:
    assert [voice["voice_id"] for voice in get(front, "/v1/voices")["voices"]] == NAMES
    first = get(front, "/v2/voices")
    assert [voice["voice_id"] for voice in first["voices"]] == NAMES[:10]
    assert first["has_more"] is True and first["total_count"] == 12
    second = get(front, f"/v2/voices?next_page_token={first['next_page_token']}")
    assert [voice["name"] for voice in second["voices"]] == NAMES[10:]
    assert second["has_more"] is False and second["next_page_token"] is None
    for query, names in (
        ("page_size=100", NAMES),
        ("search=FEL", ["felix"]),
        ("voice_ids=nora&voice_ids=felix", ["nora", "felix"]),
        ("category=cloned", []),
    ):
        assert [voice["name"] for voice in get(front, f"/v2/voices?{query}")["voices"]] == names
    for query in ("page_size=0", "page_size=x", "page_size=101", "next_page_token=nobody"):
        assert ask(front, "GET", f"/v2/voices?{query}")[0] == 400


def test_elevenlabs_tells_of_one_voice_and_of_its_settings(front: Running) -> None:
    voice = get(front, "/v1/voices/felix")
    assert (voice["voice_id"], voice["name"], voice["category"]) == ("felix", "felix", "premade")
    assert get(front, "/v1/voices/felix/settings")["speed"] == get(front, "/v1/voices/settings/default")["speed"] == 1.0
    assert ask(front, "GET", "/v1/voices/nobody")[0] == 404 and ask(front, "GET", "/v1/voices/nobody/settings")[0] == 404


def test_models_are_in_the_form_of_the_client_that_asks(front: Running) -> None:
    models = get(front, "/v1/models", KEY)
    assert {"eleven_multilingual_v2", "eleven_flash_v2_5"} <= {model["model_id"] for model in models}
    for model in models:
        assert model["can_do_text_to_speech"] is True and model["languages"] == [{"language_id": "en", "name": "English"}]
    assert get(front, "/v1/models")["object"] == "list"


def test_the_user_of_elevenlabs_has_what_its_type_requires(front: Running) -> None:
    user = get(front, "/v1/user", KEY)
    check(user, USER)
    check(user["subscription"], SUBSCRIPTION)
    assert get(front, "/v1/user/subscription", KEY) == user["subscription"]
    check(user["subscription"]["current_overage"], {"amount": TEXT, "currency": TEXT})


def test_a_cloned_voice_of_elevenlabs_speaks_without_a_transcript_and_is_deleted(server: ReadyServer, front: Running) -> None:
    files = [("files", "a.wav", RECORDING), ("files", "b.wav", RECORDING)]
    status, _, data = multipart(front, "/v1/voices/add", {"name": "Alex", "description": "An old voice."}, files)
    assert status == 200, data
    added = json.loads(data)
    assert added["requires_verification"] is False
    assert get(front, f"/v1/voices/{added['voice_id']}")["category"] == "cloned"
    assert ask(front, "POST", f"/v1/text-to-speech/{added['voice_id']}?output_format=pcm_24000", {"text": "Hello."})[0] == 200
    given = server.received[-1].inputs
    assert "reference_wav" in given and "reference_text" not in given
    assert json.loads(ask(front, "DELETE", f"/v1/voices/{added['voice_id']}", headers={"xi-api-key": added["secret"]})[2]) == {
        "status": "ok"
    }
    assert ask(front, "GET", f"/v1/voices/{added['voice_id']}")[0] == 404


def test_a_recording_may_be_larger_than_other_bodies(server: ReadyServer) -> None:
    with running(server.address, voices=VoiceStore(), limits=InterfaceLimits(max_body_bytes=len(RECORDING) // 2)) as front:
        for path, field in (("/v1/audio/voices", "audio_sample"), ("/v1/voices/add", "files"), ("/voices/clone", "clip")):
            status, _, data = multipart(front, path, {"name": field, "transcript": "Words."}, [(field, "a.wav", RECORDING)])
            assert status == 200, (path, data)


def test_a_whole_text_with_times_is_one_object(front: Running) -> None:
    path = "/v1/text-to-speech/nora/with-timestamps?output_format=pcm_24000"
    status, headers, data = ask(front, "POST", path, {"text": "Hello there."})
    found = json.loads(data)
    assert status == 200 and headers["content-type"] == "application/json"
    assert len(base64.b64decode(found["audio_base64"])) == 2 * SAMPLES_PER_CHARACTER * len("Hello there.")
    alignment = found["alignment"]
    assert "".join(alignment["characters"]) == "Hello there." and found["normalized_alignment"] == alignment
    starts, ends = alignment["character_start_times_seconds"], alignment["character_end_times_seconds"]
    assert starts == sorted(starts) and all(start <= end for start, end in zip(starts, ends, strict=True))
    assert ends[-1] == pytest.approx(SAMPLES_PER_CHARACTER * len("Hello there.") / 24000, abs=0.002)
    assert ask(front, "POST", path.replace("nora", "nobody"), {"text": "Hello."})[0] == 404


def test_cartesia_pages_through_its_voices_to_the_end(front: Running) -> None:
    page, found = get(front, "/voices"), []
    while page["data"]:
        for voice in page["data"]:
            check(voice, CARTESIA_VOICE)
        found += [voice["id"] for voice in page["data"]]
        page = get(front, f"/voices?starting_after={page['data'][-1]['id']}")
    assert found == NAMES and page == {"data": [], "has_more": False, "next_page": None}
    before = get(front, "/voices?limit=2&ending_before=voice1")
    assert [voice["id"] for voice in before["data"]] == ["felix", "voice0"] and before["has_more"] is True
    assert [voice["id"] for voice in get(front, "/voices?q=nor")["data"]] == ["nora"]
    assert get(front, "/voices?is_owner=true")["data"] == []


def test_cartesia_tells_of_one_voice_clones_and_deletes(server: ReadyServer, front: Running) -> None:
    voice = get(front, "/voices/felix")
    assert (voice["name"], voice["language"], voice["access"]) == ("felix", "en", "public")
    assert ask(front, "GET", "/voices/nobody")[0] == 404
    status, _, data = multipart(front, "/voices/clone", {"name": "Alex", "language": "en"}, [("clip", "a.wav", RECORDING)])
    cloned = json.loads(data)
    assert status == 200 and cloned["is_owner"] is True
    check(cloned, {**CARTESIA_VOICE, "user_id": TEXT})
    assert cartesia(front, voice={"mode": "id", "id": cloned["id"]})[0] == 200
    assert (
        ask(front, "DELETE", f"/voices/{cloned['id']}", headers={"x-api-key": cloned["secret"]})[0] == 204
        and ask(front, "GET", f"/voices/{cloned['id']}")[0] == 404
    )


def test_the_voices_of_the_vendors_examples_are_the_default_voice(front: Running) -> None:
    names = (
        "JBFqnCBsd6RMkjVDRZzb",
        "e07c00bc-4134-4eae-9ea4-1a55fb45746b",
        "aura-2-thalia-en",
        "flux-alexis-en",
        "longxiaochun_v2",
        "marin",
    )
    assert {front.service.voices.find(name, None).name for name in names} == {"nora"}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/audio/speech", {"model": "tts-1", "voice": "felix", "input": "Hello."}),
        ("/v1/text-to-speech/felix", {"text": "Hello."}),
        ("/v1/speak?model=felix", {"text": "Hello."}),
        (
            "/tts/bytes",
            {"model_id": "sonic-3", "transcript": "Hello.", "voice": "felix", "output_format": {"container": "mp3", "sample_rate": 44100}},
        ),
    ],
)
def test_a_preset_speaks_under_its_name_at_every_door(server: ReadyServer, front: Running, path: str, body: dict[str, Any]) -> None:
    assert ask(front, "POST", path, body)[0] == 200
    assert server.received[-1].inputs["speaker_id"] == b"felix"


@pytest.mark.parametrize("path", ALL)
def test_a_preset_speaks_under_its_name_on_every_socket(server: ReadyServer, front: Running, path: str) -> None:
    before = len(server.received)
    with connect(f"{front.ws}{path.replace('anna', 'felix')}") as socket:
        for message in [*begin(path, "Hello. "), finish(path)]:
            socket.send(message.replace('"anna"', '"felix"'))
        while len(server.received) == before:
            socket.recv()
    assert server.received[before].inputs["speaker_id"] == b"felix"


def test_with_keys_nothing_is_told_without_one(server: ReadyServer) -> None:
    with running(server.address, voices=VoiceStore(), keys=Keys({"secret-of-ann": "ann"})) as front:
        for path in ("/v1/voices", "/v2/voices", "/v1/voices/nora", "/v1/user", "/v1/models", "/voices", "/voices/nora"):
            assert ask(front, "GET", path)[0] == 401, path
            assert ask(front, "GET", path, headers={"xi-api-key": "secret-of-ann"})[0] == 200, path
