"""A host that cannot run the GPU tests gets a reason."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.check_gpu import obstacle

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("absent", "capability", "words"),
    [
        (["triton"], None, "need triton"),
        ([], None, "capability 9.0, and torch finds none"),
        ([], (8, 0), "this one has 8.0"),
        ([], (9, 0), ""),
    ],
)
def test_one_sentence_says_what_is_missing(absent: list[str], capability: tuple[int, int] | None, words: str) -> None:
    sentence = obstacle(absent, capability, (9, 0))
    assert words in sentence and bool(sentence) == bool(words) and "\n" not in sentence


def test_run_sh_refuses_a_missing_python() -> None:
    done = subprocess.run(
        ["bash", str(ROOT / "run.sh"), "test-gpu"], env={"PATH": "/usr/bin:/bin", "PYTHON_GPU": "/nowhere/python"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode != 0 and done.stdout == "" and len(done.stderr.splitlines()) == 1 and "PYTHON_GPU" in done.stderr
    assert sys.executable not in done.stderr
