"""What servers say of themselves: their voices are offered by name, and what their checkpoints do not take is not sent to them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest

from bistream.client.asyncio_client import AsyncBistreamClient
from bistream.contract.voices import PRESET, REGISTERED, ListedVoice
from bistream.errors import InvalidInputError
from interfaces.core import servers as servers_module
from interfaces.core.caller import Caller
from interfaces.core.servers import Servers
from interfaces.core.service import NOT_INSTRUCTED
from interfaces.core.voice import Voice
from interfaces.core.voices import VoiceStore
from tests.unit.client.fake_server import Reader
from tests.unit.interfaces.rig import ReadyServer, Running, reading, running
from tests.unit.interfaces.test_http import ask, speech

NORA, FELIX, ANNA = ListedVoice("nora", PRESET), ListedVoice("felix", PRESET, True), ListedVoice("anna", REGISTERED)
CARD = {"languages": "en", "can_be_instructed": "false"}


@contextlib.asynccontextmanager
async def known(*servers: ReadyServer) -> AsyncIterator[Servers]:
    found = Servers([server.address for server in servers])
    try:
        await found.check()
        yield found
    finally:
        await found.close()


@pytest.fixture
def server() -> Iterator[ReadyServer]:
    with reading() as made:
        made.voices, made.card = (FELIX, NORA, ANNA), CARD
        yield made


def voices_of(front: Running) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(ask(front, "GET", "/v1/audio/voices")[2])["voices"]
    return [voice for voice in found if not voice.get("is_alias")]


def test_the_voices_of_the_server_are_listed_under_their_names_the_default_first(server: ReadyServer) -> None:
    with running(server.address, voices=VoiceStore()) as front:
        found = voices_of(front)
        assert [(voice["name"], voice["kind"], voice["is_default"]) for voice in found] == [
            ("felix", "preset", True),
            ("nora", "preset", False),
            ("anna", "registered", False),
        ]
        assert all(voice["languages"] == ["en"] and voice["can_be_instructed"] is False for voice in found)
        for voice, spoken in (("nora", b"nora"), ("alloy", b"felix")):
            assert speech(front, voice=voice)[0] == 200
            assert server.received[-1].inputs["speaker_id"] == spoken


def test_a_recording_of_the_command_line_stays_the_default_and_hides_a_preset_of_its_name(server: ReadyServer) -> None:
    own = Voice("nora", "nora", speaker_id="elsewhere")
    with running(server.address, voices=VoiceStore((own,))) as front:
        assert [(voice["name"], voice["is_default"]) for voice in voices_of(front)] == [("nora", True), ("felix", False), ("anna", False)]
    with running(server.address, voices=VoiceStore((own,), default="anna")) as front:
        assert [voice["name"] for voice in voices_of(front)] == ["anna", "nora", "felix"]


def test_a_voice_of_the_servers_speaks_under_its_name_whatever_was_uploaded_before(server: ReadyServer) -> None:
    store = VoiceStore()
    uploaded = store.add("nora", np.zeros(16000, np.float32), "Words.", Caller(None, "10.0.0.1"))
    with running(server.address, voices=store) as front:
        assert store.find("nora", None).speaker_id == "nora" and store.find(uploaded.id, None) == uploaded
        assert [voice["kind"] for voice in voices_of(front)] == ["preset", "preset", "registered", "upload"]
        with pytest.raises(InvalidInputError, match="built-in"):
            store.add("Nora", np.zeros(16000, np.float32), "Words.", Caller(None, "10.0.0.1"))


async def test_a_voice_that_is_registered_while_the_server_runs_is_found(server: ReadyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers_module, "VOICES_INTERVAL_S", 0.0)
    async with known(server) as servers:
        server.voices = (FELIX, NORA)
        await servers.check()
        assert [voice.name for voice in servers.voices] == ["felix", "nora"]


async def test_a_server_that_comes_back_is_asked_for_everything_anew(server: ReadyServer) -> None:
    async with known(server) as servers:
        assert servers.languages == {"en"} and not servers.can_be_instructed
        (one,) = servers.all
        real, one.client = one.client, AsyncBistreamClient("127.0.0.1:1", keeps_channel=True)
        await servers.check()
        assert not servers.any_ready() and [voice.name for voice in servers.voices] == ["felix", "nora", "anna"]
        await one.client.close()
        one.client, server.card, server.voices = real, {}, (NORA,)
        await servers.check()
        assert servers.languages == frozenset() and servers.can_be_instructed
        assert [voice.name for voice in servers.voices] == ["nora"]


async def test_a_server_with_another_rate_than_the_first_is_never_chosen(server: ReadyServer) -> None:
    with reading() as other:
        server.card = {"sample_rate": "16000", "tokens_per_second": "50"}
        other.voices = (ListedVoice("ben", REGISTERED),)
        async with known(server, other) as servers:
            assert (servers.sample_rate, servers.tokens_per_second) == (16_000, 50)
            assert servers.choose((), "ben") is servers.all[0] and servers.choose((servers.all[0],)) is None


async def test_files_of_a_server_that_marks_say_so_and_others_have_plain_headers(server: ReadyServer) -> None:
    for watermark, comment in (("on", "synthetic speech"), ("on_request", "synthetic speech"), ("off", "")):
        server.card = CARD | {"watermark": watermark}
        async with known(server) as servers:
            assert servers.comment == comment
        with running(server.address, voices=VoiceStore()) as front:
            assert (b"synthetic speech" in speech(front, response_format="wav")[2]) == bool(comment)


async def test_several_servers_offer_what_any_of_them_has_and_the_one_that_has_it_is_chosen(server: ReadyServer) -> None:
    with reading() as other:
        other.voices = (NORA, ListedVoice("ben", REGISTERED))
        async with known(server, other) as servers:
            assert [voice.name for voice in servers.voices] == ["felix", "nora", "anna", "ben"]
            assert not servers.can_be_instructed and servers.languages == {"en"}
            first, second = servers.all
            assert servers.choose((), "anna") is first and servers.choose((), "ben") is second
            assert servers.choose((), None) is first


async def test_a_server_that_answers_with_nonsense_keeps_the_interfaces_going() -> None:
    server = ReadyServer(Reader())
    try:
        server.voices, server.listing = (), b'[{"name": "nora"}]'
        async with known(server) as servers:
            assert servers.any_ready() and servers.voices == []
    finally:
        server.stop()


def test_a_checkpoint_without_instructions_speaks_and_the_answer_says_that_they_had_no_effect(server: ReadyServer) -> None:
    with running(server.address, voices=VoiceStore()) as front:
        status, headers, _ = speech(front, voice="nora", model="gpt-4o-mini-tts", instructions="用四川话说这句话")
        assert status == 200 and headers["x-bistream-warning"] == NOT_INSTRUCTED
        assert "instruct_text" not in server.received[-1].inputs
        status, headers, _ = speech(front, voice="nora", model="gpt-4o-mini-tts")
        assert status == 200 and "x-bistream-warning" not in headers


def test_an_instruction_that_says_nothing_is_none_and_no_warning() -> None:
    with reading() as server, running(server.address) as front:
        for nothing in ("", "  ", "None", "null", "undefined", None):
            status, headers, _ = speech(front, model="gpt-4o-mini-tts", instructions=nothing)
            assert status == 200 and "x-bistream-warning" not in headers
            assert "instruct_text" not in server.received[-1].inputs


def test_a_voice_of_servers_that_have_never_answered_is_no_unknown_voice() -> None:
    with running("127.0.0.1:1", voices=VoiceStore()) as front:
        for voice in ("felix", "alloy"):
            assert speech(front, voice=voice)[0] == 503
