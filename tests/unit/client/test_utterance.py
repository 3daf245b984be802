"""One text in pieces, with pauses, flushes, refusals and interruptions, before servers that speak 20 ms for each character."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.client.asyncio_client import AsyncBistreamClient
from bistream.client.speaker import Speaker
from bistream.client.utterance import Pacing, Spoken, Utterance
from bistream.errors import BusyError, CancelledError, EngineError, UnknownSpeakerError
from tests.clock import run_at_once
from tests.unit.client.fake_server import SAMPLES_PER_CHARACTER, FakeServer, Reader, Received, Serve, Stream

WAIT_S = 120.0
ANNA = Speaker(speaker_id="anna", seed=3)


@pytest.fixture(scope="module")
def reader() -> Iterator[FakeServer]:
    server = FakeServer(Reader())
    yield server
    server.stop()


def speak(server: FakeServer, feed: Callable[[Utterance], Awaitable[None]], pacing: Pacing | None = None) -> list[Spoken]:
    """What is heard of the text that ``feed`` writes beside it."""

    async def run() -> list[Spoken]:
        utterance = Utterance(AsyncBistreamClient(server.address), ANNA, pacing)
        feeding = asyncio.create_task(_run(feed, utterance))
        try:
            return [spoken async for spoken in utterance]
        finally:
            await feeding
            await utterance.close()

    return asyncio.run(asyncio.wait_for(run(), WAIT_S))


async def _run(feed: Callable[[Utterance], Awaitable[None]], utterance: Utterance) -> None:
    await feed(utterance)


def characters(heard: list[Spoken]) -> float:
    return sum(spoken.waveform.size for spoken in heard) / SAMPLES_PER_CHARACTER


def texts(server: FakeServer) -> list[tuple[str, bool, bool]]:
    return [(one.inputs["target_text"].decode(), one.flag("is_start"), one.flag("is_end")) for one in server.received]


def test_pieces_reach_the_server_as_they_are(serve: Serve) -> None:
    async def feed(utterance: Utterance) -> None:
        for piece in ("Hel", "lo wor", "", "ld, 你", " 好。"):
            await utterance.push_text(piece)
            await asyncio.sleep(0)
        await utterance.end_text()

    server = serve(Reader())
    heard = speak(server, feed)
    assert [text for text, _, _ in texts(server)] == ["Hel", "lo wor", "ld, 你", " 好。", ""]
    assert characters(heard) == 17 == heard[-1].text_consumed == heard[-1].text_position
    assert server.received[0].inputs["seed"].item() == 3 and server.received[0].inputs["speaker_id"] == b"anna"


@settings(deadline=None, max_examples=12)
@given(pieces=st.lists(st.sampled_from(["Hi", " there.", "...", " ", "flush", "1"]), max_size=8))
def test_every_speakable_character_is_heard_once(reader: FakeServer, pieces: list[str]) -> None:
    """And text without anything to speak is a short silence, for what is flushed as well as for the end."""
    segments = "".join("\0" if piece == "flush" else piece for piece in pieces).split("\0")
    spoken = [text for text in segments if any(character.isalnum() for character in text)]
    silent = [text for text in segments if text.strip() and text not in spoken]

    async def feed(utterance: Utterance) -> None:
        for piece in pieces:
            await (utterance.flush() if piece == "flush" else utterance.push_text(piece))
        await utterance.end_text()

    heard = speak(reader, feed, Pacing(speak_after_s=0))
    silences = len(silent) if spoken or silent else int(any(segments))
    assert characters(heard) == pytest.approx(sum(map(len, spoken)) + 5 * silences)  # 0.1 s
    positions = [count for one in heard for count in (one.text_consumed, one.text_position)]
    assert positions == sorted(positions) and (not heard or positions[-1] <= sum(map(len, segments)))


@pytest.mark.parametrize("size", [7, 1000])
def test_a_text_that_is_too_long_for_a_session_goes_on_in_another(serve: Serve, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr("bistream.client.utterance.MAX_CHARS", 200)
    text = 20 * "A sentence of a long answer. "

    async def feed(utterance: Utterance) -> None:
        for begin in range(0, len(text), size):
            await utterance.push_text(text[begin : begin + size])
        await utterance.end_text()

    server = serve(Reader())
    heard = speak(server, feed)
    assert characters(heard) == len(text) == heard[-1].text_consumed == heard[-1].text_position
    sessions: dict[bytes, str] = {}
    for one in server.received:
        name = one.inputs["session_id"]
        sessions[name] = sessions.get(name, "") + one.inputs["target_text"].decode()
    assert "".join(sessions.values()) == text and max(map(len, sessions.values())) <= 200
    assert all(spoken.endswith(". ") for spoken in sessions.values())


async def test_a_pause_ends_a_session_and_the_voice_goes_on(serve: Serve) -> None:
    """The next text comes only when all audio of the first has, which without the pause would never end."""
    server = serve(Reader())
    utterance = Utterance(AsyncBistreamClient(server.address), ANNA, Pacing(speak_after_s=0.05))
    await utterance.push_text("So, ")
    heard = []
    async for spoken in utterance:
        heard.append(spoken)
        if spoken.text_consumed == 4:
            while not texts(server)[-1][2]:  # the session is told its end
                await asyncio.sleep(0.005)
            await utterance.end_text("what now?")
    assert characters(heard) == len("So, what now?") == heard[-1].text_consumed
    assert [(text, is_start) for text, is_start, _ in texts(server) if text] == [("So, ", True), ("what now?", True)]


class Refusing:
    """Refuses the first ``count`` starts with ``message``."""

    def __init__(self, count: int, message: str, says_first: bool = False) -> None:
        self._reader, self._count, self._message, self._says_first = Reader(), count, message, says_first

    def __call__(self, request: Received, stream: Stream) -> None:
        if "is_cancel" not in request.inputs and request.flag("is_start") and self._count:
            self._count -= 1
            if self._says_first:
                stream.audio(request.id, np.ones(SAMPLES_PER_CHARACTER), 0, 1)
            stream.error(request.id, self._message)
        elif "is_cancel" in request.inputs or request.flag("is_start") or not self._count:
            self._reader(request, stream)


async def whole(utterance: Utterance) -> None:
    await utterance.end_text("Hello.")


BUSY = "BUSY: All 3 sessions are taken; try again in 0.1 s. [retry_after_s 0.1]"


def test_what_may_pass_is_tried_again_until_it_is_heard(serve: Serve) -> None:
    server = serve(Refusing(2, BUSY))
    assert characters(speak(server, whole, Pacing(retry_waits_s=(0.0, 0.0)))) == 6
    assert texts(server) == 3 * [("Hello.", True, True)]
    with pytest.raises(BusyError):
        speak(serve(Refusing(3, BUSY)), whole, Pacing(retry_waits_s=(0.0, 0.0)))
    with pytest.raises(EngineError):  # what was heard is not said again
        speak(serve(Refusing(1, "ENGINE_ERROR: The server failed; try again.", says_first=True)), whole, Pacing(retry_waits_s=(0.0,)))
    with pytest.raises(UnknownSpeakerError):
        speak(serve(Refusing(1, "UNKNOWN_SPEAKER: No voice is registered.")), whole, Pacing(retry_waits_s=(0.0,)))


def test_callers_that_repeat_the_first_text_themselves_get_its_error(serve: Serve) -> None:
    pacing = Pacing(retry_waits_s=(0.0, 0.0), retries_first=False)
    with pytest.raises(BusyError):
        speak(serve(Refusing(1, BUSY)), whole, pacing)


async def test_a_cancel_reaches_the_server_and_says_what_was_heard(serve: Serve) -> None:
    server = serve(Reader())
    utterance = Utterance(AsyncBistreamClient(server.address), ANNA, Pacing(speak_after_s=0))
    await utterance.push_text("One. ")
    await utterance.flush()
    with pytest.raises(CancelledError):
        async for spoken in utterance:
            if spoken.text_consumed == 5:
                await utterance.push_text("Two three")
            if spoken.text_consumed > 5:
                await utterance.cancel()
    with pytest.raises(CancelledError):
        await utterance.push_text("four")
    await utterance.cancel()
    heard = utterance.heard
    assert heard is not None and (heard.text_consumed, heard.text_position) == (14, 14)
    assert "is_cancel" in server.received[-1].inputs and server.stream_gone.wait(WAIT_S)


def test_a_speed_of_its_own_streams(serve: Serve) -> None:
    """The first words are heard while the rest is not written."""
    server = serve(Reader())

    async def run() -> list[Spoken]:
        utterance = Utterance(AsyncBistreamClient(server.address), Speaker(speaker_id="anna", speed=1.5), Pacing(speak_after_s=0))
        await utterance.push_text("One ")
        heard: list[Spoken] = []
        async for spoken in utterance:
            if not heard:
                await utterance.push_text("two")
                await utterance.end_text(".")
            heard.append(spoken)
        return heard

    assert characters(asyncio.run(asyncio.wait_for(run(), WAIT_S))) == 8
    assert texts(server) == [("One ", True, False), ("two", False, False), (".", False, False), ("", False, True)]
    assert server.received[0].inputs["speed"].item() == 1.5 and "speed" not in server.received[1].inputs


def test_a_server_that_says_nothing_is_a_timeout(serve: Serve) -> None:
    with pytest.raises(TimeoutError):
        speak(serve(lambda request, stream: None), whole, Pacing(speak_after_s=0.05, answer_timeout_s=0.1))


def test_a_speaker_has_one_voice() -> None:
    made = Speaker(gender="female", pitch="low", seed=7).arguments()
    assert (made["gender"], made["pitch"], made["speaking_rate"], made["seed"]) == ("female", "low", None, 7)
    wave = np.zeros(16000, np.float32)
    for voices in ({}, {"pitch": "low"}, {"gender": "male", "speaker_id": "anna"}, {"speaker_id": "anna", "reference_wav": wave}):
        with pytest.raises(ValueError, match="give one of them"):
            Speaker(**voices)


def test_what_follows_a_flush_continues_what_was_spoken_and_so_does_the_next_turn(serve: Serve) -> None:
    server = serve(Reader())
    client_turns: list[Utterance] = []

    async def run() -> None:
        client = AsyncBistreamClient(server.address)
        for continues in (None, "last"):
            utterance = Utterance(client, ANNA, continues=client_turns[-1].spoken if continues else None)
            client_turns.append(utterance)
            for piece in ("Hello there.", "And more."):
                await utterance.push_text(piece)
                await utterance.flush()
            await utterance.end_text()
            async for _ in utterance:
                pass
        await client.close()

    asyncio.run(asyncio.wait_for(run(), WAIT_S))
    starts = [one.inputs for one in server.received if one.flag("is_start")]
    ids = [one["session_id"] for one in starts]
    assert len(set(ids)) == 4 and [one.get("continues") for one in starts] == [None, *ids[:-1]]
    assert client_turns[-1].spoken == ids[-1].decode() and len({one.secret for one in server.received}) == 1


def test_an_interrupted_turn_is_not_continued(serve: Serve) -> None:
    async def run() -> str | None:
        utterance = Utterance(AsyncBistreamClient(serve(Reader()).address), ANNA, continues="before")
        await utterance.push_text("Hello there")
        async for _ in utterance:
            break
        await utterance.cancel()
        return utterance.spoken

    assert asyncio.run(asyncio.wait_for(run(), WAIT_S)) == "before"


def test_an_empty_piece_does_not_put_off_the_end_of_a_pause(reader: FakeServer) -> None:
    """As language models send, and programs that keep a connection alive."""

    async def run() -> list[str]:
        utterance = Utterance(AsyncBistreamClient(reader.address), ANNA, Pacing(speak_after_s=1.0))
        await utterance.push_text("So, ")
        for _ in range(3):
            await asyncio.sleep(0.4)
            await utterance.push_text("")
        await utterance.push_text("what now?")
        return [segment.text for segment in utterance._segments]

    assert run_at_once(run()) == ["So, ", "what now?"]
