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
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("bistream", "model_repo", "gateway", "interfaces", "training", "plugins", "deploy", "client", "scripts", "benchmarks", "tests")
REASONS = {  # "path" or "path:function" -> why it may be over its budget
    "bistream/token2wav/service.py": "one state under one lock; what can be decided or computed without it is elsewhere",
    "bistream/text2token/scheduler.py": "one state under one lock; what can be decided without it is elsewhere",
    "bistream/contract/fields.py": "the table of all tensors, in which every field has its row",
}


class Function(NamedTuple):
    name: str
    lines: int  # without decorators
    is_jit: bool  # compiled by Triton or Gluon


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


def excesses(path: Path) -> dict[str, str]:
    """What is over its budget, the file or functions of it, and by how much."""
    name = path.relative_to(ROOT).as_posix()
    budget = 400 if is_kernel(path) else 200 if fnmatch(name, "model_repo/*/model.py") else 300
    sizes = [(name, count_lines(path), budget)]
    sizes += [(f"{name}:{one.name}", one.lines, 100 if one.is_jit else 60) for one in functions(path)]
    return {what: f"{lines} lines, budget {most}" for what, lines, most in sizes if lines > most}


def print_sizes(folder: str, paths: list[Path]) -> None:
    counts = [count_lines(path) for path in paths]
    lengths = [function.lines for path in paths for function in functions(path)]
    row = (len(counts), sum(counts), int(statistics.median(counts)), max(counts), len(lengths), max(lengths, default=0))
    print(f"{folder:12} {row[0]:5} {row[1]:6} {row[2]:6} {row[3]:7} {row[4]:9} {row[5]:7}")


def main() -> int:
    """0 if every excess has a reason, and every reason an excess."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(f"{'folder':12} {'files':>5} {'lines':>6} {'median':>6} {'largest':>7} {'functions':>9} {'longest':>7}")
    found: dict[str, str] = {}
    for folder in FOLDERS:
        if paths := sources(ROOT, folder):
            print_sizes(folder, paths)
            for path in paths if folder != "tests" else ():
                found |= excesses(path)
    for name, size in found.items():
        print(f"{name}: {size}: {REASONS.get(name, 'OVER BUDGET, shorten it')}")
    for name in sorted(REASONS.keys() - found):
        print(f"{name}: within its budget, REMOVE ITS REASON")
    return int(found.keys() != REASONS.keys())


if __name__ == "__main__":
    sys.exit(main())
