"""Compiling ahead, in several processes: every part once, no more at a time than allowed, and a failure that stops no other.

Without a GPU there is nothing to compile: stand-ins run in place of the stages, and the real stages are only loaded.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.config import RuntimeConfig
from scripts.compile_kernels import jobs_of, main, run_all


def test_every_part_runs_once_and_no_more_at_a_time_than_allowed(tmp_path: Path) -> None:
    # Each stand-in notes when it runs and how many others do.
    code = (
        "import os, sys, time, pathlib\n"
        "folder, name = pathlib.Path(sys.argv[1]), sys.argv[2]\n"
        "running = folder / f'{name}.running'\n"
        "running.touch()\n"
        "others = len(list(folder.glob('*.running')))\n"
        "(folder / f'{name}.saw').write_text(str(others))\n"
        "running.unlink()\n"
        "sys.exit('first line\\nno room for ' + name if name == 'c' else 0)\n"
    )
    names = ["a", "b", "c", "d", "e"]
    outcomes = list(run_all(names, lambda job: [sys.executable, "-c", code, str(tmp_path), job], workers=2))
    assert sorted(outcome.job for outcome in outcomes) == names
    assert {outcome.job: outcome.error for outcome in outcomes if outcome.error} == {"c": "no room for c"}
    seen = [int((tmp_path / f"{name}.saw").read_text(encoding="utf-8")) for name in names]
    assert len(seen) == 5 and max(seen) <= 2


def test_a_process_that_cannot_start_or_says_nothing() -> None:
    (missing,) = run_all(["a"], lambda job: ["/no/such/program"], workers=1)
    (mute,) = run_all(["a"], lambda job: [sys.executable, "-c", "raise SystemExit(7)"], workers=1)
    assert "No such file" in missing.error and mute.error == "exit code 7"


@given(st.integers(1, 4096))
def test_jobs(rows: int) -> None:
    jobs = jobs_of(RuntimeConfig(max_rows=rows))
    assert len(set(jobs)) == len(jobs) and jobs[:2] == ["flow", "vocoder"]
    counts = [int(job.partition(":")[2]) for job in jobs[2:]]
    assert counts[0] == rows and counts == sorted(counts, reverse=True) and counts[-1] >= 1
    assert all(job.startswith("language_model:") for job in jobs[2:])


def test_the_program_with_the_real_stages(tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--set", "device=cpu", "--set", "max_sessions=2", "--set", "num_threads=1", "--set", "max_session_tokens=256"]
    for job in ("flow", "language_model:16", "vocoder"):
        assert main(["--model-dir", str(tiny_model_dir), *settings, "--job", job]) == 0
    assert main(["--model-dir", str(tiny_model_dir / "absent"), *settings, "--job", "flow"]) == 1
    assert "compile_kernels.py: cosyvoice2.yaml is missing" in capsys.readouterr().err
    assert main(["--model-dir", str(tiny_model_dir), "--set", "dtype=int3"]) == 1
    with pytest.raises(SystemExit):
        main(["--model-dir", str(tiny_model_dir), "--workers", "0"])
