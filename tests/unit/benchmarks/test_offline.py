"""benchmarks/offline.py and the stages that it runs, on the tiny checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import offline
from bistream.client.audio import read_reference
from bistream.config import RuntimeConfig
from bistream.errors import BistreamError
from bistream.local import LocalPipeline, VoiceChoice
from bistream.token2wav.hop_jobs import MAX_HOP_TOKENS
from bistream.types import GenerationOptions
from scripts._chunk_strategy import schedule
from scripts._stages import Speech, Stages, hop_sizes
from tests.formats import CHUNK_TOKENS, LOOKAHEAD_TOKENS, SAMPLES_PER_TOKEN
from tests.unit.benchmarks.sets import write_jsonl, write_recording

CPU = ["--device", "cpu", "--dtype", "float32", "--num-threads", "1"]
TOO_LONG = "Too long. " * 500


def config(model_dir: Path) -> RuntimeConfig:
    return RuntimeConfig(model_dir=str(model_dir), device="cpu", dtype="float32", num_threads=1, max_sessions=2)


@pytest.fixture(scope="module")
def stages(tiny_model_dir: Path) -> Iterator[Stages]:
    found = Stages(config(tiny_model_dir))
    yield found
    found.close()


def test_a_batch_is_what_its_rows_are_alone(stages: Stages, tiny_model_dir: Path, tmp_path: Path) -> None:
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
    with LocalPipeline(config(tiny_model_dir)) as pipeline:
        whole = stages.render_whole(speeches[0], 3)
        assert isinstance(whole, np.ndarray)
        np.testing.assert_allclose(pipeline.synthesize("Hi.", choices[0], sampling), whole, atol=2e-3)


def test_an_error_is_that_of_its_row(stages: Stages, tmp_path: Path) -> None:
    voice = stages.voice(VoiceChoice(read_reference(write_recording(tmp_path / "voice.wav")), "A tone."))
    good, bad = stages.speech_tokens([("Hi.", voice), (TOO_LONG, voice)], GenerationOptions())
    assert isinstance(bad, BistreamError) and not isinstance(good, BistreamError)
    spoken, failed = stages.render([Speech(good, voice), Speech(good * 400, voice)], seed=0)
    assert isinstance(failed, BistreamError) and isinstance(spoken, np.ndarray)


def test_a_batch_size_is_measured(tiny_model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = write_jsonl(tmp_path, ["Hi.", "You.", TOO_LONG]), tmp_path / "out"
    arguments = ["--model-dir", str(tiny_model_dir), "--dataset", str(source), "--out", str(out), "--batch-size", "2", *CPU]
    arguments += ["--warm-up", "0", "--wavs", "--upstream-files"]
    assert offline.main(arguments) == 1
    assert "error: INVALID_INPUT" in capsys.readouterr().err
    (run,) = json.loads((out / "result.json").read_text())["metrics"]["runs"]
    assert (run["rows"], run["failed"]) == (3, 1)
    assert run["real_time_factor"] == pytest.approx(run["wall_s"] / run["audio_s"], rel=1e-3)
    assert min(run[name] for name in ("voice_s", "language_model_s", "token2wav_s")) > 0
    assert soundfile.info(out / "batch-2/a.wav").frames + soundfile.info(out / "batch-2/b.wav").frames == 24000 * run["audio_s"]
    log = json.loads((out / "batch-2/log.txt").read_text())
    assert (log["llm_time_seconds"], log["pipeline_time_seconds"]) == (run["language_model_s"], run["wall_s"])


def test_a_failed_start_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_jsonl(tmp_path, ["Hi."])
    assert offline.main(["--model-dir", str(tmp_path), "--dataset", str(source), "--out", str(tmp_path / "out"), *CPU]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@settings(max_examples=200, deadline=None)
@given(prompt=st.integers(0, 750), total=st.integers(1, 3000))
def test_hops_of_an_utterance_end_where_the_flow_commits(prompt: int, total: int) -> None:
    sizes = hop_sizes(prompt, total)
    assert sum(sizes) == total and all(0 < size <= MAX_HOP_TOKENS for size in sizes)
    ends = np.cumsum(sizes)[:-1]
    assert all((prompt + end - LOOKAHEAD_TOKENS) % CHUNK_TOKENS == 0 for end in ends)


@settings(max_examples=200, deadline=None)
@given(total=st.integers(1, 3000), strategy=st.sampled_from(("equal", "exponential")))
def test_chunks_are_those_of_the_strategy(total: int, strategy: str) -> None:
    sizes = schedule(strategy, total)
    assert sum(sizes) == total and max(sizes) <= MAX_HOP_TOKENS
    full = [size - LOOKAHEAD_TOKENS * (index == 0) for index, size in enumerate(sizes[:-1])]
    assert full == [CHUNK_TOKENS if strategy == "equal" else min(CHUNK_TOKENS * 2**index, MAX_HOP_TOKENS) for index in range(len(full))]
    following = CHUNK_TOKENS if strategy == "equal" else min(CHUNK_TOKENS * 2 ** len(full), MAX_HOP_TOKENS)
    assert sizes[-1] < following + LOOKAHEAD_TOKENS * (not full), "the rest would have been a chunk"
