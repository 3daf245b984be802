"""The data set benchmark on a real server that answers offline. On one that streams: test_spark.py."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import dataset
from bistream.keeper.server_process import TritonServer
from tests.unit.benchmarks.sets import write_jsonl


def test_stage_5_offline(offline_server: TritonServer, tmp_path: Path) -> None:
    """A measurement with two tasks and all files."""
    source, out = write_jsonl(tmp_path, ["Hi.", "You.", "We."]), tmp_path / "out"
    arguments = ["--server", offline_server.grpc_url, "--dataset", str(source), "--mode", "offline", "--num-tasks", "2", "--warm-up", "0"]
    assert dataset.main([*arguments, "--out", str(out), "--wavs", "--upstream-files"]) == 0
    (run,) = json.loads((out / "result.json").read_text())["metrics"]["runs"]
    assert (run["sessions"], run["failed"], run["second_chunk_ms"]) == (3, 0, {})
    assert "latency_99_percentile_ms: " in (out / "tasks-2/rtf-set.txt").read_text()
