"""The whole pipeline in one process on a tiny random model: real stages, real orchestrator, no server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

from bistream.config import RuntimeConfig
from bistream.contract.audio import REFERENCE_SAMPLE_RATE
from bistream.errors import SessionExistsError
from bistream.local import LocalPipeline, VoiceChoice
from bistream.sessions.breaks import FADE_S
from bistream.token2wav.service import Token2WavHop
from bistream.types import AudioChunk, FloatArray, GenerationOptions, SpeechTokens, TokenDemand
from tests.formats import SAMPLE_RATE, SAMPLES_PER_MEL_FRAME, SAMPLES_PER_TOKEN
from tests.sounds import speech_like

TEXT = "Hello there."
PIECES = ["Hel", "lo th", "ere", "."]
WAIT_S = 120.0


def tone() -> VoiceChoice:
    return VoiceChoice(speech_like(), "A tone.")


@pytest.fixture(scope="module")
def pipeline(brief_model_dir: Path) -> Iterator[LocalPipeline]:
    config = RuntimeConfig(
        model_dir=str(brief_model_dir),
        device="cpu",
        dtype="float32",
        num_threads=1,
        max_sessions=4,
        kv_cache_tokens=16384,
        flow_state_mb=256,
    )
    with LocalPipeline(config) as pipeline:
        yield pipeline


def audio(chunks: list[AudioChunk]) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.concatenate([chunk.waveform for chunk in chunks])


def test_offline_speech_is_whole_tokens_and_audible_and_speed_shortens_it(pipeline: LocalPipeline) -> None:
    before = pipeline.times.seconds()
    waveform = pipeline.synthesize(TEXT, tone())
    assert waveform.dtype == np.float32
    assert len(waveform) > 0
    assert len(waveform) % SAMPLES_PER_TOKEN == 0
    assert np.abs(waveform).max() <= 0.99
    assert waveform.std() > 0.01
    assert len(pipeline.synthesize(TEXT, tone(), speed=2.0)) == len(waveform) // 2
    assert all(seconds > before[stage] for stage, seconds in pipeline.times.seconds().items())


def test_pieces_give_the_same_audio_however_they_are_cut(pipeline: LocalPipeline) -> None:
    chunks = list(pipeline.stream(PIECES, tone(), GenerationOptions(seed=3)))
    assert [chunk.sequence_number for chunk in chunks] == list(range(len(chunks)))
    assert chunks[-1].text_consumed == len(TEXT)
    again = list(pipeline.stream(list(TEXT), tone(), GenerationOptions(seed=3)))
    first, second = audio(chunks), audio(again)
    assert first.shape == second.shape, "the speech tokens do not depend on the cut"
    assert len(first) % SAMPLES_PER_TOKEN == 0


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_session_continues_one_that_was_spoken_in_the_same_voice(pipeline: LocalPipeline, is_whole: bool) -> None:
    def spoken(text: str, continues: str | None, session_id: str, voice: VoiceChoice | None = None) -> bytes:
        options = GenerationOptions(seed=6, continues=continues)
        chunks = pipeline.stream([text], voice or tone(), options, is_whole, session_id=session_id)
        return audio(list(chunks)).tobytes()

    before, following = f"before-{is_whole}", "You."
    spoken("Hi.", None, before)
    alone = spoken(following, None, "next")
    assert spoken(following, before, "next") != alone, "its prompt is another one"
    assert spoken(following, "nobody", "next") == alone
    other = VoiceChoice(speech_like(), "Another tone.")
    assert spoken(following, before, "next", other) == spoken(following, None, "next", other)


@pytest.mark.parametrize("speed", [0.8, 1.5])
def test_a_speed_streams_with_the_same_tokens(pipeline: LocalPipeline, speed: float) -> None:
    usual = audio(list(pipeline.stream(PIECES, tone(), GenerationOptions(seed=3))))
    chunks = list(pipeline.stream(PIECES, tone(), GenerationOptions(seed=3), speed=speed))
    assert len(audio(chunks)) == int(len(usual) // SAMPLES_PER_MEL_FRAME / speed) * SAMPLES_PER_MEL_FRAME
    assert chunks[-1].text_consumed == len(TEXT) and audio(chunks).std() > 0.01


@pytest.mark.parametrize("speed", [1.0, 1.5])
@pytest.mark.parametrize("is_whole", [False, True])
def test_a_break_is_exact_silence_in_the_stream(pipeline: LocalPipeline, is_whole: bool, speed: float) -> None:
    ssml = GenerationOptions(seed=3, text_type="ssml")
    text = 'Hello.<break time="1234ms"/> There.'
    chunks = list(pipeline.stream([text] if is_whole else list(text), tone(), ssml, is_whole, speed))
    samples = audio(chunks)
    edges = np.flatnonzero(np.diff(np.concatenate([[1], samples != 0, [1]]).astype(int)))  # ends of speech and silence, in turn
    silences = edges[1::2] - edges[::2]
    assert 1234 * SAMPLE_RATE // 1000 <= silences.max() <= 1234 * SAMPLE_RATE // 1000 + 2  # a fade ends and begins with a zero
    said = len(samples) - 1234 * SAMPLE_RATE // 1000 - round(FADE_S * SAMPLE_RATE)
    assert said > 0 and said % SAMPLES_PER_MEL_FRAME == 0
    assert chunks[-1].text_consumed == chunks[-1].text_position == len(text)
    positions = [chunk.text_position for chunk in chunks]
    assert positions == sorted(positions)
    if speed == 1.0:
        alone = [audio(list(pipeline.stream([part], tone(), ssml, is_whole))) for part in ("Hello.", "There.")]
        assert len(alone[0]) == edges[2 * int(silences.argmax())] - round(FADE_S * SAMPLE_RATE)


def test_a_rate_holds_for_its_text_alone(pipeline: LocalPipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """And each hop has one speed."""
    messages, hops = list[SpeechTokens](), list[Token2WavHop]()
    take, hop = pipeline._language_model.take, pipeline._token2wav.hop

    async def taken(session_id: str, demand: TokenDemand) -> SpeechTokens:
        messages.append(await take(session_id, demand))
        return messages[-1]

    async def hopped(one: Token2WavHop) -> FloatArray:
        hops.append(one)
        return await hop(one)

    monkeypatch.setattr(pipeline._language_model, "take", taken)
    monkeypatch.setattr(pipeline._token2wav, "hop", hopped)
    text = '<prosody rate="200%">Hello.</prosody> There.<break time="1s"/><prosody rate="50%">You.</prosody>'
    samples = audio(list(pipeline.stream(list(text), tone(), GenerationOptions(seed=3, text_type="ssml"), speed=0.8)))
    expected, speed = list[tuple[int, float]](), 0.8
    for message in messages:
        for one in message.breaks:
            speed = max(0.5, 0.8 * one.rate_percent / 100)
        expected += ((token, speed) for token in message.token_ids)
    assert [(token, one.speed) for one in hops for token in one.token_ids] == expected
    assert [speed for speed, _ in groupby(speed for _, speed in expected)] == [1.6, 0.8, 0.5, 0.8]
    filling = sum(one.tokens for message in messages for one in message.breaks)
    heard_s = sum(1 / speed for _, speed in expected) / 25 + 1.0  # and fades, and less than a frame at each change
    assert heard_s - filling / 25 / 0.5 < len(samples) / SAMPLE_RATE < heard_s - filling / 25 / 1.6 + 0.1


def test_what_is_said_before_a_break_waits_for_no_further_text(pipeline: LocalPipeline) -> None:
    """Nor does the silence: a voice agent says little and then asks a tool."""
    heard, samples = threading.Event(), list[FloatArray]()

    def pieces() -> Iterator[str]:
        yield 'Hi.<break time="700ms"/>'
        assert heard.wait(WAIT_S)
        yield "Yes, there it is."

    for chunk in pipeline.stream(pieces(), tone(), GenerationOptions(seed=3, text_type="ssml")):
        samples.append(chunk.waveform)
        if not chunk.waveform.any():
            heard.set()
    assert samples[0].any() and len(samples) > 2


def test_silence_alone_is_heard(pipeline: LocalPipeline) -> None:
    samples = audio(list(pipeline.stream(['<break time="2s"/>'], tone(), GenerationOptions(text_type="ssml"))))
    assert len(samples) == 2 * SAMPLE_RATE and not samples.any()


def test_a_text_of_many_sequences_is_one_stream_and_numbers_are_words(tiny_model_dir: Path) -> None:
    config = RuntimeConfig(
        model_dir=str(tiny_model_dir),
        device="cpu",
        dtype="float32",
        num_threads=1,
        max_sessions=1,
        flow_state_mb=256,
        max_session_tokens=48,
        text_normalization="auto",
    )
    text, written_out = "5 km.", "five kilometers."
    with LocalPipeline(config) as short:
        chunks, expected = (list(short.stream(list(each), tone(), GenerationOptions(seed=1))) for each in (text, written_out))
        stats = short._language_model.service._parts.engine.stats()
    assert chunks[-1].text_consumed == len(text)
    assert [chunk.sequence_number for chunk in chunks] == list(range(len(chunks)))
    assert len(audio(chunks)) == len(audio(expected)) > 48 * SAMPLES_PER_TOKEN, "more speech than one sequence holds"
    assert stats.sessions == 0


def test_audio_comes_before_the_text_has_ended(pipeline: LocalPipeline) -> None:
    heard = threading.Event()

    def pieces() -> Iterator[str]:
        yield "It begins and goes on, "
        assert heard.wait(WAIT_S)
        yield "ok."

    chunks = []
    for chunk in pipeline.stream(pieces(), tone()):
        chunks.append(chunk)
        heard.set()
    assert len(chunks) > 1


def test_leaving_a_stream_early_ends_it_and_frees_everything(tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its language model speaks for half a minute, and the recording is long: the rest must not be computed."""
    config = RuntimeConfig(model_dir=str(tiny_model_dir), device="cpu", dtype="float32", num_threads=1, max_sessions=1, flow_state_mb=256)
    text, source = "A text that goes on for quite a while. " * 2, speech_like(10 * REFERENCE_SAMPLE_RATE, seed=1)
    hops = list[Token2WavHop]()
    with LocalPipeline(config) as pipeline:
        hop = pipeline._token2wav.hop

        async def hopped(one: Token2WavHop) -> FloatArray:
            hops.append(one)
            return await hop(one)

        monkeypatch.setattr(pipeline._token2wav, "hop", hopped)
        services = pipeline._language_model.service, pipeline._token2wav._service
        for stream in (pipeline.stream([text], tone()), pipeline.stream([text], tone(), is_whole=True), pipeline.convert(source, tone())):
            assert len(next(stream).waveform) > 0
            stream.close()  # type: ignore[attr-defined]
            deadline = time.monotonic() + WAIT_S
            while any(held := (pipeline._orchestrator.open_sessions, services[0].num_sessions, services[1].live_sessions)):
                assert time.monotonic() < deadline, held
                threading.Event().wait(0.005)
    assert not any(one.finalize for one in hops)


def test_a_start_with_an_id_in_use_leaves_its_session_alone(pipeline: LocalPipeline) -> None:
    refused = threading.Event()

    def pieces() -> Iterator[str]:
        yield "It begins and goes on, "
        assert refused.wait(WAIT_S)
        yield "ok."

    stream = pipeline.stream(pieces(), tone(), session_id="a")
    chunks = [next(stream)]
    with pytest.raises(SessionExistsError):
        next(pipeline.stream([TEXT], tone(), is_whole=True, session_id="a"))
    refused.set()
    assert [*chunks, *stream][-1].text_consumed == len("It begins and goes on, ok.")


def test_an_exception_of_the_pieces_reaches_the_listener(pipeline: LocalPipeline) -> None:
    def pieces() -> Iterator[str]:
        yield "Hello"
        raise LookupError("the language model is gone")

    with pytest.raises(LookupError, match="language model"):
        list(pipeline.stream(pieces(), tone()))


def test_without_its_transcript_a_recording_speaks_cross_lingually(pipeline: LocalPipeline) -> None:
    zero_shot, bare, flagged = (
        pipeline.synthesize("Hi.", voice)
        for voice in (tone(), replace(tone(), reference_text=None), replace(tone(), is_cross_lingual=True))
    )
    np.testing.assert_array_equal(bare, flagged)
    assert not np.array_equal(bare, zero_shot)


def test_a_recording_is_converted_as_a_whole_and_as_a_stream(pipeline: LocalPipeline) -> None:
    """With the timing of the source: as many tokens as it has, in the voice of another recording."""
    source, voice = speech_like(24000, seed=1), replace(tone(), reference_text=None)
    whole = audio(list(pipeline.convert(source, voice, offline=True)))
    chunks = list(pipeline.convert(source, voice))
    assert len(chunks) > 1
    assert len(whole) == len(audio(chunks)) == -(-len(source) // 640) * SAMPLES_PER_TOKEN
    assert whole.std() > 0.01 and audio(chunks).std() > 0.01
    other = audio(list(pipeline.convert(source, replace(voice, reference_wav=source), offline=True)))
    assert not np.array_equal(whole, other)
