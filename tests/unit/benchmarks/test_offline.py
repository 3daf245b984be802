"""benchmarks/offline.py and the stages that it runs, on the tiny checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.client.audio import read_reference
from bistream.config import RuntimeConfig
from bistream.errors import BistreamError
from bistream.local import LocalPipeline, VoiceChoice
from bistream.token2wav.hop_jobs import MAX_HOP_TOKENS
from bistream.types import GenerationOptions
from scripts._stages import Speech, Stages, hop_sizes
from tests.formats import AUDIO_FORMAT, CHUNK_TOKENS, LOOKAHEAD_TOKENS, SAMPLES_PER_TOKEN
from tests.unit.benchmarks.sets import write_recording

CPU = ["--device", "cpu", "--dtype", "float32", "--num-threads", "1"]
TOO_LONG = "Too long. " * 500


def config(model_dir: Path) -> RuntimeConfig:
    return RuntimeConfig(model_dir=str(model_dir), device="cpu", dtype="float32", num_threads=1, max_sessions=2)


@pytest.fixture(scope="module")
def stages(brief_model_dir: Path) -> Iterator[Stages]:
    found = Stages(config(brief_model_dir))
    yield found
    found.close()


def test_a_batch_is_what_its_rows_are_alone(stages: Stages, brief_model_dir: Path, tmp_path: Path) -> None:
    """And the tokens are those of the pipeline, whose offline waveform is that of full attention."""
    choices = [VoiceChoice(read_reference(write_recording(tmp_path / f"{hertz}.wav", pitch_hz=hertz)), "A tone.") for hertz in (120, 180)]
    voices = [stages.voice(choice) for choice in choices]
    texts = list(zip(("Hi.", "You."), voices, strict=True))
    sampling = GenerationOptions(seed=3)
    together = stages.speech_tokens(texts, sampling)
    assert together == [stages.speech_tokens([text], sampling)[0] for text in texts]
    speeches = [Speech(tokens, voice) for tokens, voice in zip(together, voices, strict=True) if not isinstance(tokens, BistreamError)]
    for waveform, speech in zip(stages.render(speeches, seed=3), speeches, strict=True):
        (alone,) = stages.render([speech], seed=3)
        assert isinstance(waveform, np.ndarray) and isinstance(alone, np.ndarray)
        assert len(waveform) == SAMPLES_PER_TOKEN * len(speech.tokens)
        np.testing.assert_allclose(waveform, alone, atol=2e-3)  # as neighbours in the vocoder's batch: f0 is rounded
    with LocalPipeline(config(brief_model_dir)) as pipeline:
        whole = stages.render_whole(speeches[0], 3)
        assert isinstance(whole, np.ndarray)
        np.testing.assert_allclose(pipeline.synthesize("Hi.", choices[0], sampling), whole, atol=2e-3)


def test_an_error_is_that_of_its_row(stages: Stages, tmp_path: Path) -> None:
    voice = stages.voice(VoiceChoice(read_reference(write_recording(tmp_path / "voice.wav")), "A tone."))
    good, bad = stages.speech_tokens([("Hi.", voice), (TOO_LONG, voice)], GenerationOptions())
    assert isinstance(bad, BistreamError) and not isinstance(good, BistreamError)
    spoken, failed = stages.render([Speech(good, voice), Speech(good * 4000, voice)], seed=0)
    assert isinstance(failed, BistreamError) and isinstance(spoken, np.ndarray)


@given(prompt=st.integers(0, 750), total=st.integers(1, 3000))
def test_hops_of_an_utterance_end_where_the_flow_commits(prompt: int, total: int) -> None:
    sizes = hop_sizes(prompt, total, AUDIO_FORMAT)
    assert sum(sizes) == total and all(0 < size <= MAX_HOP_TOKENS for size in sizes)
    ends = np.cumsum(sizes)[:-1]
    assert all((prompt + end - LOOKAHEAD_TOKENS) % CHUNK_TOKENS == 0 for end in ends)
