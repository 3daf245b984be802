"""The decisions of benchmarks/measure.py: names and contents of files, sizes that fit a GPU."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measure import parse_arguments, short_name, summary, write


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("Tesla T4", "t4"),
        ("cpu", "cpu"),
    ],
)
def test_names_of_gpus(device: str, name: str) -> None:
    assert short_name(device) == name


def results() -> dict[str, dict[str, Any]]:
    first = {"p50": 310.0, "p99": 364.0}
    run = {
        "load": "real time",
        "num_tasks": 64,
        "failed": 0,
        "sessions_without_gap": 64,
        "audio_s_per_s": 221.4,
        "time_to_first_audio_ms": first,
    }
    metrics: dict[str, dict[str, Any]] = {
        "sessions": {"runs": [run], "startup_s": {"cold": 90.0, "warm": 12.0}},
        "lm": {"step_ms": {"1": 0.37}, "startup_s": 3.0},
    }
    return {
        name: {"name": name, "commit": "abc", "command": name, "config": {"size": name}, "metrics": each} for name, each in metrics.items()
    }


def options(out: Path, kernels: str, *more: str) -> argparse.Namespace:
    return parse_arguments(["--kernels", kernels, "--out", str(out), "--quick", *more])


def test_a_file_per_part(tmp_path: Path) -> None:
    files = write(results(), options(tmp_path, "auto"), "h200")
    assert [file.name for file in files] == ["sessions-h200.json", "lm-h200.json"]
    assert json.loads(files[1].read_text()) == results()["lm"]


def test_one_file_of_the_middle_tier(tmp_path: Path) -> None:
    (file,) = write(results(), options(tmp_path / "new", "graphs"), "h100")
    found = json.loads(file.read_text())
    assert (file.name, found["name"], found["commit"]) == ("graphs-h100.json", "graphs", "abc")
    for key in ("command", "config", "metrics"):
        assert found[key] == {name: result[key] for name, result in results().items()}


def test_one_file_of_cosyvoice3(tmp_path: Path) -> None:
    (file,) = write(results(), options(tmp_path, "auto", "--family", "cosyvoice3"), "h200")
    found = json.loads(file.read_text())
    assert (file.name, found["name"]) == ("cosyvoice3-h200.json", "cosyvoice3")
    assert found["metrics"]["sessions"] == results()["sessions"]["metrics"]


def test_cosyvoice3_is_measured_alone_in_closed_loop_and_in_real_time(tmp_path: Path) -> None:
    chosen = parse_arguments(["--family", "cosyvoice3"])
    assert (chosen.closed, chosen.callers, chosen.parts) == ([1, 64], [256], ["server", "token2wav"])
    usual = parse_arguments([])
    assert (usual.closed, usual.callers, usual.parts) == ([], [1, 64, 128, 256, 576], ["server", "lm", "token2wav"])
    assert parse_arguments(["--size", "tiny"]).callers == [1, 2]
    assert options(tmp_path, "auto", "--parts", "lm", "--closed", "4").closed == [4]


def test_the_table_names_every_number_of_callers() -> None:
    rows = summary(results())
    assert ("step_ms, 1", 0.37) in rows
    assert any(name == "64 callers, real time" and "p50 310.0 p99 364.0" in str(said) for name, said in rows)
    assert summary({}) == [("measured", "value")]
