"""The pipeline in one process with a family that has no flow: sentences of a text are the same however the text comes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bistream.commands.voices import main
from bistream.config import RuntimeConfig
from bistream.errors import InvalidInputError
from bistream.families.spark import SPARK
from bistream.local import LocalPipeline, VoiceChoice
from bistream.text2token.one_table.prompts import Labels, SpeakerTokens, continued_prompt
from bistream.text2token.speech_lengths import SpeechLengths
from bistream.types import FloatArray, GenerationOptions
from tests.sounds import speech_like

TEXT = "Hello there. How are you?"  # spoken in one
FIRST = "Hello there, nice to see you here again today."  # long enough to be spoken by itself
SAMPLES_PER_TOKEN = 320
REACH = 67  # tokens
VOICE = VoiceChoice(speech_like(), "A tone.")
LABELLED = VoiceChoice(gender="female", pitch="high")
OPTIONS = GenerationOptions(seed=3)


@pytest.fixture(scope="module")
def voices_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("voices")


@pytest.fixture(scope="module")
def pipeline(tiny_spark_dir: Path, voices_dir: Path) -> Iterator[LocalPipeline]:
    config = RuntimeConfig(
        model_dir=str(tiny_spark_dir), voices_dir=str(voices_dir), device="cpu", num_threads=1, max_sessions=4, first_lookahead_tokens=REACH
    )
    with LocalPipeline(config) as pipeline:
        yield pipeline


@pytest.fixture(autouse=True)
def bounded_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random weights rarely end by themselves."""
    monkeypatch.setattr(SpeechLengths, "most", lambda *_: 70)


@pytest.fixture
def short_sentences(bounded_sentences: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SpeechLengths, "most", lambda *_: 20)


def spoken(
    pipeline: LocalPipeline, pieces: list[str], is_whole: bool = False, voice: VoiceChoice = VOICE, options: GenerationOptions = OPTIONS
) -> FloatArray:
    chunks = list(pipeline.stream(pieces, voice, options, is_whole))
    assert [chunk.sequence_number for chunk in chunks] == list(range(len(chunks)))
    assert chunks[-1].text_consumed == len("".join(pieces))
    return np.concatenate([chunk.waveform for chunk in chunks])


def test_a_text_is_the_same_speech_however_it_comes(pipeline: LocalPipeline) -> None:
    assert pipeline.sample_rate == 16_000
    whole = spoken(pipeline, [TEXT], is_whole=True)
    assert len(whole) % SAMPLES_PER_TOKEN == 0 and whole.std() > 0.01 and np.abs(whole).max() <= 0.99
    for pieces in (list(TEXT), [TEXT[:5], TEXT[5:15], TEXT[15:]]):
        np.testing.assert_allclose(spoken(pipeline, pieces), whole, rtol=0, atol=5e-5)
    np.testing.assert_allclose(pipeline.synthesize(TEXT, VOICE, OPTIONS), whole, rtol=0, atol=5e-5)


def test_a_sentence_is_heard_to_its_end_before_the_next_one_is_written(pipeline: LocalPipeline) -> None:
    heard = threading.Event()

    def written() -> Iterator[str]:
        yield f"{FIRST} How are "
        assert heard.wait(60), "it is withheld"
        yield "you?"

    for chunk in pipeline.stream(written(), VOICE, OPTIONS):
        if chunk.text_consumed >= len(FIRST):
            heard.set()
    assert chunk.text_consumed == len(FIRST) + len(" How are you?")


def test_a_short_lookahead_changes_the_first_samples(pipeline: LocalPipeline, tiny_spark_dir: Path) -> None:
    exact = spoken(pipeline, ["Hi."], is_whole=True)
    with LocalPipeline(RuntimeConfig(model_dir=str(tiny_spark_dir), device="cpu", num_threads=1, first_lookahead_tokens=5)) as other:
        early = spoken(other, ["Hi."], is_whole=True)
        offline = other.synthesize("Hi.", VOICE, OPTIONS)
    first, second = SPARK.first_hop_tokens * SAMPLES_PER_TOKEN, (SPARK.first_hop_tokens + SPARK.blocks.speech_tokens) * SAMPLES_PER_TOKEN
    assert len(early) == len(exact) > second and np.abs(early - exact)[:first].max() > 1e-2
    np.testing.assert_allclose(early[first:second], exact[first:second], rtol=0, atol=1e-3)
    np.testing.assert_allclose(early[second:], exact[second:], rtol=0, atol=5e-5)
    np.testing.assert_allclose(offline, exact, rtol=0, atol=5e-5)


def test_without_a_transcript_it_is_another_speech(pipeline: LocalPipeline) -> None:
    foreign = spoken(pipeline, [TEXT], is_whole=True, voice=VoiceChoice(speech_like()))
    assert len(foreign) % SAMPLES_PER_TOKEN == 0
    assert not np.array_equal(foreign, spoken(pipeline, [TEXT], is_whole=True))


@pytest.mark.usefixtures("short_sentences")
def test_labels_and_a_seed_are_a_voice(pipeline: LocalPipeline) -> None:
    """However the text comes, and whatever it begins with."""
    labelled = spoken(pipeline, [TEXT], is_whole=True, voice=LABELLED)
    assert len(labelled) % SAMPLES_PER_TOKEN == 0 and labelled.std() > 0.01
    for pieces in (["", TEXT], list(TEXT)):
        np.testing.assert_allclose(spoken(pipeline, pieces, voice=LABELLED), labelled, rtol=0, atol=5e-5)
    others = (replace(LABELLED, gender="male"), replace(LABELLED, speaking_rate="low"), replace(LABELLED, pitch=None))
    assert not any(np.array_equal(spoken(pipeline, [TEXT], True, voice), labelled) for voice in others)


@pytest.mark.usefixtures("short_sentences")
def test_every_sentence_has_the_voice_and_another_seed_another_one(pipeline: LocalPipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts: list[tuple[str, SpeakerTokens]] = []

    def prompted(*given: Any) -> list[int]:
        prompts.append((given[3], given[4]))
        return continued_prompt(*given)

    monkeypatch.setattr("bistream.text2token.one_table.continuation.continued_prompt", prompted)

    def speaker(text: str, seed: int, temperature: float = 1.0) -> SpeakerTokens:
        prompts.clear()
        spoken(pipeline, [text], is_whole=True, voice=LABELLED, options=GenerationOptions(seed, temperature))
        assert [spoken.strip() for spoken, _ in prompts] == [f"{sentence.strip()}." for sentence in text.split(".")[:-1]]
        (only,) = {speaker for _, speaker in prompts}
        return only

    text = "The weather was clear today, so we walked along the river. She asked whether the train would arrive on time."
    found = speaker(text, 3)
    assert found.labels == Labels("female", "high", "moderate") and len(set(found.global_tokens)) > 1
    assert found == speaker("Nobody knew the answer to that.", 3) == speaker("Nobody knew the answer to that.", 3, temperature=0.5)
    assert found != speaker(text, 4)


@pytest.mark.usefixtures("short_sentences")
def test_a_voice_of_labels_that_is_registered_sounds_the_same(pipeline: LocalPipeline, tiny_spark_dir: Path, voices_dir: Path) -> None:
    directories = ["--model-dir", str(tiny_spark_dir), "--voices-dir", str(voices_dir)]
    assert main(["add", "anna", *directories, "--gender", "female", "--pitch", "high", "--seed", "3"]) == 0
    registered = spoken(pipeline, [TEXT], is_whole=True, voice=VoiceChoice(speaker_id="anna"))
    assert np.array_equal(registered, spoken(pipeline, [TEXT], is_whole=True, voice=LABELLED))


def test_a_recording_is_converted(pipeline: LocalPipeline) -> None:
    source = speech_like()
    converted = np.concatenate([chunk.waveform for chunk in pipeline.convert(source, VOICE, OPTIONS)])
    assert abs(len(converted) - len(source)) < 2 * SAMPLES_PER_TOKEN, "a token for each 20 ms"
    labelled = np.concatenate([chunk.waveform for chunk in pipeline.convert(source, LABELLED, OPTIONS)])
    assert len(labelled) == len(converted) and not np.array_equal(labelled, converted)


def test_it_has_no_speed(pipeline: LocalPipeline) -> None:
    with pytest.raises(InvalidInputError, match="no speed"):
        pipeline.synthesize(TEXT, VOICE, OPTIONS, speed=1.5)
    with pytest.raises(InvalidInputError, match="no speed"):
        next(pipeline.stream([TEXT], VOICE, OPTIONS, speed=1.5))


def test_a_break_is_exact_silence_and_what_is_said_before_it_waits_for_no_further_text(
    pipeline: LocalPipeline, short_sentences: None
) -> None:
    heard, ssml, samples = threading.Event(), GenerationOptions(seed=3, text_type="ssml"), list[FloatArray]()

    def pieces() -> Iterator[str]:
        yield f'{FIRST}<break time="700ms"/>'
        assert heard.wait(120)
        yield f"{FIRST}<break/>"

    for chunk in pipeline.stream(pieces(), VOICE, ssml):
        samples.append(chunk.waveform)
        if not chunk.waveform.any():
            heard.set()
    silent = [len(one) for one in samples if not one.any()]
    assert silent == [11_200, 12_000] and samples[0].any()
    with pytest.raises(InvalidInputError, match="cannot be changed here"):
        spoken(pipeline, ['<prosody rate="slow">Hi.</prosody>'], options=ssml)
