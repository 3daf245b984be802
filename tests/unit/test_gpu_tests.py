"""The GPU tests, as far as that can be said without a GPU: every kernel has one, and who cannot run them is told why."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.check_gpu import obstacle

ROOT = Path(__file__).resolve().parents[2]
LAUNCH = re.compile(r"\bkernels_\w+\.(\w+)")
STAGES = ("text2token", "token2mel", "mel2wav")
GENERAL = "estimator.py"  # serves sizes that no checkpoint has; tests/gpu/test_token2wav_cuda.py runs it as a whole


def launched(stage: str) -> set[str]:
    """Names of the kernels that the host code of a stage launches."""
    hosts = [path for path in (ROOT / "bistream" / stage / "cuda").glob("*.py") if not path.name.startswith("kernels_")]
    return {name for path in hosts if path.name != GENERAL for name in LAUNCH.findall(path.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("stage", STAGES)
def test_every_kernel_is_named_in_a_test_of_its_stage(stage: str) -> None:
    tests = " ".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "gpu" / stage).glob("test_*.py"))
    kernels = launched(stage)
    assert kernels, "no launch was found"
    assert not {name for name in kernels if not re.search(rf"``{name}``", tests)}


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


def test_run_sh_refuses_a_python_that_is_not_there() -> None:
    done = subprocess.run(
        ["bash", str(ROOT / "run.sh"), "test-gpu"], env={"PATH": "/usr/bin:/bin", "PYTHON_GPU": "/nowhere/python"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode != 0 and done.stdout == "" and len(done.stderr.splitlines()) == 1 and "PYTHON_GPU" in done.stderr
    assert sys.executable not in done.stderr
