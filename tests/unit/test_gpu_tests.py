"""The GPU tests, checked without a GPU: every kernel has one, and a host that cannot run them gets a reason."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.check_gpu import obstacle

ROOT = Path(__file__).resolve().parents[2]
STAGES = ("text2token", "token2mel", "mel2wav")
IN_BACKTICKS = re.compile(r"`([^`]+)`")


def launched(stage: str) -> set[str]:
    """``module.kernel`` of all kernels that the host code of a stage launches, in the tiers ``kernels`` and ``graphs``."""
    stage_dir = ROOT / "bistream" / stage
    sources = [path.read_text(encoding="utf-8") for folder in ("cuda", "graphs/cuda") for path in (stage_dir / folder).glob("*.py")]
    nodes = [node for source in sources for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)]
    names = {f"{node.value.id}.{node.attr}" for node in nodes if isinstance(node.value, ast.Name)}
    return {name for name in names if name.startswith("kernels_")}


def documented(stage: str) -> Iterator[tuple[str, str]]:
    """``module.kernel`` and the path of its test, from the stage's table in docs/kernels.md; an empty cell repeats the one above."""
    text = (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")
    section = text.split(f"(`{stage}`)\n")[1].split("\n## ")[0]
    test = ""
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) < 6 or not IN_BACKTICKS.search(cells[2]):
            continue
        test = cells[4].strip("`") or test
        module = ""
        for name in IN_BACKTICKS.findall(cells[2]):
            module = name.split(".")[0] if "." in name else module
            yield f"{module}.{name.split('.')[-1]}", test


@pytest.mark.parametrize("stage", STAGES)
def test_every_kernel_is_in_the_table_with_a_test_that_names_it(stage: str) -> None:
    kernels, rows = launched(stage), list(documented(stage))
    assert kernels, "no launch was found"
    assert {kernel for kernel, _ in rows} == kernels
    for kernel, test in rows:
        assert f"``{kernel.split('.')[1]}``" in (ROOT / test).read_text(encoding="utf-8"), f"{test} does not name {kernel}"


@pytest.mark.parametrize("stage", STAGES)
def test_every_test_of_kernels_is_in_the_table(stage: str) -> None:
    """``test_graph_*.py`` are tests of whole stages in recorded graphs."""
    tests = [path for path in (ROOT / "tests" / "gpu" / stage).glob("test_*.py") if not path.name.startswith("test_graph_")]
    files = {path.relative_to(ROOT).as_posix() for path in tests}
    assert files == {test for _, test in documented(stage)}


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
