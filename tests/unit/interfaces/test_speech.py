"""The session core alone, before servers with scripted answers: segments, pauses, silence, other servers, cancels, drain."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pytest

from bistream.client.segments import MAX_CHARS
from bistream.errors import BistreamError, BusyError, InvalidInputError
from interfaces.core.caller import Caller
from interfaces.core.errors import SlowReaderError
from interfaces.core.servers import Servers
from interfaces.core.service import SpeechService
from interfaces.core.speech import Audio, Flushed, Speech
from interfaces.core.values import Values
from interfaces.core.voices import VoiceStore
from interfaces.settings import InterfaceLimits
from tests.unit.client.fake_server import FakeServer, Received, Stream
from tests.unit.interfaces.rig import ANNA, SAMPLES_PER_CHARACTER, reading

Result = TypeVar("Result")
CALLER = Caller("key", "10.0.0.1")
WAIT_S = 120.0


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with reading() as made:
        yield made


def run(main: Coroutine[Any, Any, Result]) -> Result:
    async def closing() -> Result:
        try:
            return await asyncio.wait_for(main, WAIT_S)
        finally:
            while made:
                await made.pop().close()

    return asyncio.run(closing())


run_coroutine = run
made: list[Servers] = []  # by the test that runs


def service_for(*addresses: str, speak_after_s: float = 0.0, **limits: int) -> SpeechService:
    made.append(Servers(addresses))
    return SpeechService(made[-1], VoiceStore((ANNA,)), InterfaceLimits(**limits), speak_after_s)


async def heard(speech: Speech) -> list[Audio | Flushed]:
    parts = [part async for part in speech]
    await speech.close()
    return parts


def texts(server: FakeServer) -> list[tuple[str, bool, bool]]:
    """(text, is_start, is_end) of all requests."""
    return [
        (one.inputs["target_text"].decode(), one.flag("is_start"), one.flag("is_end"))
        for one in server.received
        if "is_cancel" not in one.inputs
    ]


async def test_pieces_reach_the_server_as_they_come(server: FakeServer) -> None:
    service = service_for(server.address)
    speech = service.open("anna", CALLER)
    parts = speech.__aiter__()
    await speech.append(" ")  # nothing to speak yet: no session
    await speech.append("Hel")
    first = await anext(parts)
    assert isinstance(first, Audio) and first.text_consumed == 4
    await speech.append("lo")
    second = await anext(parts)
    assert isinstance(second, Audio) and second.text_consumed == 6
    await speech.end()
    assert [part async for part in parts] == []
    await speech.close()
    assert texts(server) == [(" Hel", True, False), ("lo", False, False), ("", False, True)]


async def test_a_flush_is_spoken_to_its_end_and_the_next_text_in_a_session_of_its_own(server: FakeServer) -> None:
    service = service_for(server.address)
    speech = service.open("anna", CALLER)
    for piece in ("One.", "Two."):
        await speech.append(piece)
        await speech.flush()
    await speech.end()
    parts = await heard(speech)
    assert [type(part).__name__ for part in parts] == ["Audio", "Flushed", "Audio", "Flushed"]
    assert [part.text_consumed for part in parts if isinstance(part, Audio)] == [4, 8]
    assert [text for text, is_start, is_end in texts(server) if is_start and is_end] == ["One.", "Two."]


async def test_a_pause_speaks_what_is_there_and_takes_no_place(server: FakeServer) -> None:
    service = service_for(server.address, speak_after_s=0.05)
    speech = service.open("anna", CALLER)
    parts = speech.__aiter__()
    await speech.append("Wait,")
    first = await anext(parts)
    assert isinstance(first, Audio) and first.text_consumed == 5
    waiting = asyncio.ensure_future(anext(parts))
    while service.servers.all[0].open_sessions:
        await asyncio.sleep(0.01)
    await speech.end(" what?")
    last = await waiting
    assert isinstance(last, Audio) and last.text_consumed == 11
    await speech.close()
    assert [text for text, is_start, _ in texts(server) if is_start] == ["Wait,", " what?"]
    assert [is_end for *_, is_end in texts(server)].count(True) == 2


def test_text_without_anything_to_speak_is_a_short_silence_without_a_server() -> None:
    async def speak(text: str) -> list[Audio | Flushed]:
        speech = service_for("127.0.0.1:1").open("anna", CALLER)
        await speech.end(text)
        return await heard(speech)

    (silence,) = run(speak("..."))
    assert isinstance(silence, Audio) and not silence.samples.any() and silence.text_consumed == 3 and len(silence.samples) == 2400
    assert run(speak("  ")) == [] and run(speak("")) == []


def refusing(sentence: str) -> FakeServer:
    return FakeServer(lambda request, stream: stream.error(request.id, sentence))


async def test_another_server_speaks_what_a_full_or_dead_one_refuses(server: FakeServer) -> None:
    with refusing("BUSY: The server speaks with as many listeners as it can. [session s; retry_after_s 2.5]") as full:
        service = service_for("127.0.0.1:1", full.address, server.address)
        speech = service.open("anna", CALLER)
        await speech.append("Hel")
        await speech.end("lo")
        parts = await heard(speech)
        assert [one.is_ready for one in service.servers.all] == [False, None, None]
        assert service.servers.choose() is service.servers.all[2]  # the full one is asked last
        assert sum(len(part.samples) for part in parts if isinstance(part, Audio)) == 5 * SAMPLES_PER_CHARACTER
        assert len(full.received) == 1


@pytest.mark.parametrize(
    ("sentence", "kind"),
    [("BUSY: All are taken. [retry_after_s 2.5]", BusyError), ("INVALID_INPUT: The text is wrong.", InvalidInputError)],
)
async def test_the_servers_refusal_is_the_answer(sentence: str, kind: type[BistreamError]) -> None:
    with refusing(sentence) as server:
        service = service_for(server.address)
        speech = service.open("anna", CALLER)
        await speech.end("Hello")
        with pytest.raises(kind):
            await heard(speech)
        await speech.close()
        assert service.open_speeches == 0 and service.servers.all[0].open_sessions == 0


@pytest.mark.parametrize("changes", [False, True])
async def test_what_was_heard_is_not_said_again_elsewhere(server: FakeServer, changes: bool) -> None:
    """changes: the name stands for another server meanwhile, as when a pod is replaced."""

    def behave(request: Received, stream: Stream) -> None:
        stream.audio(request.id, np.ones(100), 0, 1)
        stream.error(request.id, "BUSY: late")

    with FakeServer(behave) as broken:
        service = service_for(*([broken.address] if changes else [broken.address, server.address]))
        before, speech = service.servers.all, service.open("anna", CALLER)
        await speech.end("Hello")
        with pytest.raises(BusyError):
            async for _ in speech:
                if changes:
                    service.servers.all = service_for(server.address).servers.all
        await speech.close()
        service.servers.all = before  # to be closed
        assert server.received == []


async def test_limits_of_a_key_of_an_address_and_of_a_text(server: FakeServer) -> None:
    service = service_for(server.address, max_speeches=8, max_text_chars=5)
    first, second = service.open("anna", CALLER), service.open("anna", Caller(CALLER.key, "10.0.0.2"))
    with pytest.raises(BusyError, match="API key has 2 utterances"):
        service.open("anna", Caller(CALLER.key, "10.0.0.3"))
    third = service.open("anna", Caller("other", CALLER.address))
    with pytest.raises(BusyError, match="address has 2 utterances"):
        service.open("anna", Caller("third", CALLER.address))
    await first.append("12345")
    with pytest.raises(InvalidInputError):
        await first.append("6")
    await asyncio.gather(first.close(), second.close(), third.close())
    await service.open("anna", CALLER).close()


async def test_values_are_checked_before_a_place_is_taken(server: FakeServer) -> None:
    service = service_for(server.address)
    wrong: list[Values] = [{"speed": 9.0}, {"instruct_text": "half \ud83d"}]
    for values in wrong:
        with pytest.raises(InvalidInputError):
            service.open("anna", CALLER, values)
    assert service.open_speeches == 0 and service.counts.refused == len(wrong)


async def test_an_instruction_holds_for_every_session_of_the_utterance(server: FakeServer) -> None:
    speech = service_for(server.address).open("anna", CALLER, {"instruct_text": "calm"})
    await speech.append("One.")
    await speech.flush()
    await speech.end("Two.")
    await heard(speech)
    starts = [one for one in server.received if one.flag("is_start")]
    assert [one.inputs.get("instruct_text") for one in starts] == [b"calm", b"calm"]


async def test_sessions_of_one_server_share_a_connection_and_leave_nothing(server: FakeServer) -> None:
    tasks = len(asyncio.all_tasks())
    service = service_for(server.address)
    for _ in range(20):
        speech = service.open("anna", CALLER)
        await speech.end("Hi")
        await heard(speech)
    assert len(service.servers.all[0].client.channels) == 1
    await service.servers.close()
    while len(asyncio.all_tasks()) > tasks:
        await asyncio.sleep(0.001)


async def test_audio_that_is_not_read_is_bounded() -> None:
    """The models give it as fast as they make it; a client may be slower."""

    def flood(request: Received, stream: Stream) -> None:
        for number in range(400):
            stream.audio(request.id, np.zeros(24_000), number, 0)

    with FakeServer(flood) as server:
        service = service_for(server.address)
        speech = service.open("anna", CALLER)
        await speech.end("Hello")
        parts = speech.__aiter__()
        await anext(parts)
        await asyncio.to_thread(server.stream_gone.wait, WAIT_S)  # it is ended while nobody takes the next part
        with pytest.raises(SlowReaderError, match="90 s"):
            async for _ in parts:
                pass
        await speech.close()
        assert service.open_speeches == 0


async def test_a_text_that_is_too_long_for_a_session_goes_on_in_another(server: FakeServer) -> None:
    service = service_for(server.address)
    for one in service.servers.all:
        one.facts = replace(one.facts, max_text_chars=20)
    speech = service.open("anna", CALLER)
    for piece in ("One two three", ". Four five six. ", "Seven."):
        await speech.append(piece)
    await speech.flush()
    await speech.end("Eight.")
    parts = await heard(speech)
    sessions: list[str] = []
    for text, is_start, _ in texts(server):
        sessions += [""] if is_start else []
        sessions[-1] += text
    assert sessions == ["One two three. ", "Four five six. ", "Seven.", "Eight."]
    assert sum(isinstance(part, Flushed) for part in parts) == 1
    audio = [part for part in parts if isinstance(part, Audio)]
    assert audio[-1].text_consumed == len("One two three. Four five six. Seven.Eight.")
    assert sum(len(part.samples) for part in audio) == audio[-1].text_consumed * SAMPLES_PER_CHARACTER


async def test_servers_tell_how_long_a_text_may_be(server: FakeServer) -> None:
    with reading() as telling:
        telling.card = {"max_text_chars": "123"}
        servers = service_for(server.address, telling.address).servers
        await servers.check()
        assert [one.facts.max_text_chars for one in servers.all] == [MAX_CHARS, 123] and servers.max_text_chars == 123
