"""The whole pipeline in one process on a tiny random model: real stages, real orchestrator, no server."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bistream.config import RuntimeConfig
from bistream.errors import CheckpointError, InvalidInputError, UnknownSpeakerError
from bistream.local import LocalPipeline, VoiceChoice
from bistream.rates import SAMPLES_PER_TOKEN
from bistream.types import AudioChunk, Sampling

TEXT = "Hello there."
PIECES = ["Hel", "lo th", "ere", "."]
WAIT_S = 60.0


def tone() -> VoiceChoice:
    seconds = np.arange(16000, dtype=np.float32) / 16000
    return VoiceChoice(0.3 * np.sin(2 * np.pi * 150 * seconds, dtype=np.float32), "A tone.")


@pytest.fixture(scope="module")
def pipeline(tiny_model_dir: Path) -> Iterator[LocalPipeline]:
    config = RuntimeConfig(
        model_dir=str(tiny_model_dir),
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
    chunks = list(pipeline.stream(PIECES, tone(), Sampling(seed=3)))
    assert [chunk.sequence_number for chunk in chunks] == list(range(len(chunks)))
    assert chunks[-1].text_consumed == len(TEXT)
    again = list(pipeline.stream(list(TEXT), tone(), Sampling(seed=3)))
    first, second = audio(chunks), audio(again)
    assert first.shape == second.shape, "the speech tokens do not depend on the cut"
    assert len(first) % SAMPLES_PER_TOKEN == 0


def test_a_whole_text_streams_in_one_request(pipeline: LocalPipeline) -> None:
    chunks = list(pipeline.stream(PIECES, tone(), is_whole=True))
    assert len(chunks) > 1
    assert chunks[-1].text_consumed == len(TEXT)


def test_audio_comes_before_the_text_has_ended(pipeline: LocalPipeline) -> None:
    heard = threading.Event()

    def pieces() -> Iterator[str]:
        yield "This is a beginning, and on and on and on it goes, "
        assert heard.wait(WAIT_S)
        yield "then."

    chunks = []
    for chunk in pipeline.stream(pieces(), tone()):
        chunks.append(chunk)
        heard.set()
    assert len(chunks) > 1


def test_leaving_the_stream_early_frees_everything(pipeline: LocalPipeline) -> None:
    stream = pipeline.stream(["A text that goes on for quite a while, ", "so that there is something to leave."], tone())
    assert len(next(stream).waveform) > 0
    stream.close()  # type: ignore[attr-defined]
    orchestrator = pipeline._orchestrator
    with orchestrator._changed:
        assert orchestrator._changed.wait_for(lambda: not orchestrator._open, WAIT_S)
    assert pipeline._language_model._service.num_sessions == 0
    assert pipeline._token2wav._service.live_sessions == 0


def test_an_exception_of_the_pieces_reaches_the_listener(pipeline: LocalPipeline) -> None:
    def pieces() -> Iterator[str]:
        yield "Hello"
        raise LookupError("the language model is gone")

    with pytest.raises(LookupError, match="language model"):
        list(pipeline.stream(pieces(), tone()))


def test_a_damaged_file_leaves_no_thread_behind(tiny_model_dir: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(tiny_model_dir, damaged)
    (damaged / "hift.pt").write_bytes((damaged / "hift.pt").read_bytes()[:1000])
    threads = set(threading.enumerate())
    with pytest.raises(CheckpointError, match="hift.pt"):
        LocalPipeline(RuntimeConfig(model_dir=str(damaged), device="cpu", num_threads=1, kv_cache_tokens=16384, flow_state_mb=64))
    assert set(threading.enumerate()) <= threads


def test_refusals_are_raised(pipeline: LocalPipeline) -> None:
    with pytest.raises(InvalidInputError):
        pipeline.synthesize("", tone())
    with pytest.raises(InvalidInputError):
        list(pipeline.stream(["Hello"], VoiceChoice()))
    with pytest.raises(UnknownSpeakerError):
        pipeline.synthesize("Hello", VoiceChoice(speaker_id="nobody"))
