#!/usr/bin/env python3
"""Reports the size of the code, and fails when a file or a function is over its budget.

==========================================  ==========  ================================
modules                                     file lines  function lines
==========================================  ==========  ================================
kernels: those with a ``@jit`` function     400         100 with ``@jit``, 60 without it
``model.py`` of ``model_repo``, glue        200         60
all others                                  300         60
tests                                       no budget
==========================================  ==========  ================================

A kernel gets more because accumulators, layouts and barriers live in one scope: a part that needs half of them as parameters is
harder to read than the whole. Parts without such state (loading a tile, an epilogue) are separate functions in kernels too.

An exception is an entry of ``REASONS``; a stale entry fails as well.
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
FOLDERS = ("bistream", "model_repo", "gateway", "interfaces", "training", "plugins", "deploy", "client", "scripts", "benchmarks", "tests")
REASONS = {  # "path" or "path:function" -> why it may be over its budget
    "bistream/token2wav/service.py": "one state under one lock; what can be decided or computed without it is elsewhere",
    "bistream/text2token/scheduler.py": "one state under one lock; what can be decided without it is elsewhere",
}


class Function(NamedTuple):
    name: str
    lines: int  # without decorators
    is_jit: bool  # compiled by Triton or Gluon


class Excess(NamedTuple):
    name: str  # "path" or "path:function"
    lines: int
    budget: int


def sources(root: Path, folder: str) -> list[Path]:
    return sorted(path for path in (root / folder).rglob("*.py") if "__pycache__" not in path.parts)


def count_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def is_jit(decorator: ast.expr) -> bool:
    """Whether it is ``triton.jit`` or ``gluon.jit``, with arguments or without."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(called, ast.Attribute) and called.attr == "jit"


def functions(path: Path) -> list[Function]:
    return [
        Function(node.name, (node.end_lineno or node.lineno) - node.lineno + 1, any(map(is_jit, node.decorator_list)))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def is_kernel(path: Path) -> bool:
    return any(function.is_jit for function in functions(path))


def excesses(root: Path, path: Path) -> Iterator[Excess]:
    """The file and its functions, where they are over budget."""
    name = path.relative_to(root).as_posix()
    if name.startswith("tests/"):
        return
    file_budget = 400 if is_kernel(path) else 200 if fnmatch(name, "model_repo/*/model.py") else 300
    if (lines := count_lines(path)) > file_budget:
        yield Excess(name, lines, file_budget)
    for function in functions(path):
        budget = 100 if function.is_jit else 60
        if function.lines > budget:
            yield Excess(f"{name}:{function.name}", function.lines, budget)


def print_sizes(folder: str, paths: list[Path]) -> None:
    counts = [count_lines(path) for path in paths]
    lengths = [function.lines for path in paths for function in functions(path)]
    row = (len(counts), sum(counts), int(statistics.median(counts)), max(counts), len(lengths), max(lengths, default=0))
    print(f"{folder:12} {row[0]:5} {row[1]:6} {row[2]:6} {row[3]:7} {row[4]:9} {row[5]:7}")


def report(root: Path, reasons: dict[str, str]) -> bool:
    """Print the sizes below ``root``; returns whether every excess has a reason, and every reason an excess."""
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
