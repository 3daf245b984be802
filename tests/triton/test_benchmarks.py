"""The data set benchmark on real servers: one that streams and one that answers offline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import soundfile

from benchmarks import dataset
from bistream.keeper.server_process import TritonServer
from tests.unit.benchmarks.sets import write_jsonl

TEXTS = ["Hi.", "You.", "We."]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path, TEXTS)


def speak(url: str, source: Path, out: Path, mode: str, *more: str) -> dict[str, Any]:
    """The only run of a measurement with two tasks and all files."""
    arguments = ["--server", url, "--dataset", str(source), "--mode", mode, "--num-tasks", "2", "--warm-up", "0", "--out", str(out)]
    assert dataset.main([*arguments, "--wavs", "--upstream-files", *more]) == 0
    (run,) = json.loads((out / "result.json").read_text())["metrics"]["runs"]
    found: dict[str, Any] = run
    return found


def test_stage_5_streams_a_data_set(grpc_url: str, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = speak(grpc_url, source, out, "bistream", "--text-rate", "50")
    assert (run["sessions"], run["failed"]) == (3, 0)
    assert run["time_to_first_audio_ms"]["p50"] < run["whole_ms"]["p99"]
    frames = sum(soundfile.info(out / "tasks-2" / f"{name}.wav").frames for name in "abc")
    assert frames / 24000 == pytest.approx(run["audio_s"], abs=1e-3)
    rtf = (out / "tasks-2/rtf-set.txt").read_text()
    assert rtf.startswith(f"Mode: bistream\nRTF: {run['real_time_factor']:.4f}\ntotal_duration: {run['audio_s']:.3f} seconds\n")
    assert "average_second_chunk_latency_ms: " in rtf


def test_stage_5_offline(offline_server: TritonServer, source: Path, tmp_path: Path) -> None:
    run = speak(offline_server.grpc_url, source, tmp_path / "out", "offline")
    assert (run["sessions"], run["failed"], run["second_chunk_ms"]) == (3, 0, {})
    assert "latency_99_percentile_ms: " in (tmp_path / "out/tasks-2/rtf-set.txt").read_text()
