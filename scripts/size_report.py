#!/usr/bin/env python3
"""Lists how large the code is, and fails when a file or a function is over its budget.

====================================================  ==========  ==============
modules                                               file lines  function lines
====================================================  ==========  ==============
kernels and their pieces (``KERNELS``)                400         100
``model.py`` of ``model_repo``: glue                  200         60
all others                                            300         60
tests                                                 no budget
====================================================  ==========  ==============

A kernel gets more because accumulators, layouts and barriers live in one scope: a part that needs half of them as parameters is
harder to read than the whole. What has no such state (loading a tile, an epilogue) is a function of its own in kernels too.

An exception is an entry of ``REASONS``; one that nothing needs any more fails as well.
"""

from __future__ import annotations

import argparse
import ast
import statistics
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("bistream", "model_repo", "gateway", "training", "plugins", "deploy", "client", "scripts", "benchmarks", "tests")
KERNELS = (
    "*/cuda/kernels_*.py",
    "*/cuda/pieces_*.py",
    "bistream/gpu/arithmetic.py",
    "bistream/gpu/barriers.py",
    "bistream/gpu/dependent_launch.py",
)
REASONS = {  # "path" or "path:function" -> why it may be over its budget
    "bistream/mel2wav/hift.py": "one network; its parts are read side by side",
}


class Budget(NamedTuple):
    file_lines: int
    function_lines: int


class Excess(NamedTuple):
    name: str  # "path" or "path:function"
    lines: int
    budget: int


def is_kernel(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in KERNELS)


def budget_of(name: str) -> Budget | None:
    """``name``: path from the root of the repository."""
    if name.startswith("tests/"):
        return None
    if is_kernel(name):
        return Budget(400, 100)
    return Budget(200, 60) if fnmatch(name, "model_repo/*/model.py") else Budget(300, 60)


def sources(root: Path, folder: str) -> list[Path]:
    return sorted(path for path in (root / folder).rglob("*.py") if "__pycache__" not in path.parts)


def count_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """(name, lines) of each function, decorators left aside."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def excesses(root: Path, path: Path) -> Iterator[Excess]:
    name = path.relative_to(root).as_posix()
    budget = budget_of(name)
    if budget is None:
        return
    if (lines := count_lines(path)) > budget.file_lines:
        yield Excess(name, lines, budget.file_lines)
    for function, length in functions(path):
        if length > budget.function_lines:
            yield Excess(f"{name}:{function}", length, budget.function_lines)


def print_sizes(folder: str, paths: list[Path]) -> None:
    counts = [count_lines(path) for path in paths]
    lengths = [length for path in paths for _, length in functions(path)]
    row = (len(counts), sum(counts), int(statistics.median(counts)), max(counts), len(lengths), max(lengths, default=0))
    print(f"{folder:12} {row[0]:5} {row[1]:6} {row[2]:6} {row[3]:7} {row[4]:9} {row[5]:7}")


def report(root: Path, reasons: dict[str, str]) -> bool:
    """Print the sizes below ``root``; whether nothing is over its budget without a reason, and no reason without need."""
    print(f"{'folder':12} {'files':>5} {'lines':>6} {'median':>6} {'largest':>7} {'functions':>9} {'longest':>7}")
    found: list[Excess] = []
    for folder in FOLDERS:
        if paths := sources(root, folder):
            print_sizes(folder, paths)
            found += [excess for path in paths for excess in excesses(root, path)]
    for name, lines, budget in found:
        print(f"{name}: {lines} lines, budget {budget}: {reasons.get(name, 'OVER BUDGET, shorten it')}")
    names = {excess.name for excess in found}
    stale = reasons.keys() - names
    for name in sorted(stale):
        print(f"{name}: within its budget, REMOVE ITS REASON")
    return names <= reasons.keys() and not stale


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    return 0 if report(ROOT, REASONS) else 1


if __name__ == "__main__":
    sys.exit(main())
