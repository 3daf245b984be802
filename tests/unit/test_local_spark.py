"""The pipeline in one process with a family that has no flow: sentences of a text are the same however the text comes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bistream.config import RuntimeConfig
from bistream.errors import InvalidInputError
from bistream.local import LocalPipeline, VoiceChoice
from bistream.types import FloatArray, GenerationOptions
from tests.sounds import speech_like

TEXT = "Hello there. How are you?"
SAMPLES_PER_TOKEN = 320
VOICE = VoiceChoice(speech_like(), "A tone.")
OPTIONS = GenerationOptions(seed=3)


@pytest.fixture(scope="module")
def pipeline(tiny_spark_dir: Path) -> Iterator[LocalPipeline]:
    with LocalPipeline(RuntimeConfig(model_dir=str(tiny_spark_dir), device="cpu", num_threads=1, max_sessions=4)) as pipeline:
        yield pipeline


def spoken(pipeline: LocalPipeline, pieces: list[str], is_whole: bool = False, voice: VoiceChoice = VOICE) -> FloatArray:
    chunks = list(pipeline.stream(pieces, voice, OPTIONS, is_whole))
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


def test_without_a_transcript_it_is_another_speech(pipeline: LocalPipeline) -> None:
    foreign = spoken(pipeline, [TEXT], is_whole=True, voice=VoiceChoice(speech_like()))
    assert len(foreign) % SAMPLES_PER_TOKEN == 0
    assert not np.array_equal(foreign, spoken(pipeline, [TEXT], is_whole=True))


def test_a_recording_is_converted(pipeline: LocalPipeline) -> None:
    source = speech_like()
    converted = np.concatenate([chunk.waveform for chunk in pipeline.convert(source, VOICE, OPTIONS)])
    assert abs(len(converted) - len(source)) < 2 * SAMPLES_PER_TOKEN, "a token for each 20 ms"


def test_it_has_no_speed(pipeline: LocalPipeline) -> None:
    with pytest.raises(InvalidInputError, match="no speed"):
        pipeline.synthesize(TEXT, VOICE, OPTIONS, speed=1.5)
