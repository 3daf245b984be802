#!/usr/bin/env python3
"""Lists how large the code is, and fails when a file or function is over its budget without a reason in ``REASONS``.

Budgets: a file 300 lines (networks and GPU kernels 500), a function 60 lines (a GPU kernel 100, it is one function by nature), a
model.py 200 lines. Tests have none.
"""

from __future__ import annotations

import argparse
import ast
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("bistream", "gateway", "model_repo", "client", "scripts", "benchmarks", "tests")
FILE_LINES, NETWORK_LINES, FUNCTION_LINES, KERNEL_LINES, MODEL_LINES = 300, 500, 60, 100, 200
NETWORKS = {
    "bistream/text2token/qwen2.py",
    "bistream/token2mel/encoder.py",
    "bistream/token2mel/estimator.py",
    "bistream/mel2wav/hift.py",
    "bistream/voice/s3_network.py",
}
REASONS: dict[str, str] = {}  # "path" or "path:function" -> why it may be over its budget


def sources(folder: str) -> list[Path]:
    return sorted(path for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts)


def functions(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def budget(name: str) -> int:
    if name.endswith("/model.py") and name.startswith("model_repo/"):
        return MODEL_LINES
    return NETWORK_LINES if name in NETWORKS or "/cuda/" in name else FILE_LINES


def over_budget(path: Path) -> Iterator[tuple[str, int, int]]:
    """(what, lines, budget) of a file and its functions that are too long."""
    name = str(path.relative_to(ROOT))
    lines = len(path.read_text(encoding="utf-8").splitlines())
    if lines > budget(name):
        yield name, lines, budget(name)
    function_budget = KERNEL_LINES if "/cuda/kernels_" in name else FUNCTION_LINES
    for function, length in functions(path):
        if length > function_budget:
            yield f"{name}:{function}", length, function_budget


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(f"{'folder':12} {'files':>5} {'lines':>6} {'median':>6} {'largest':>7} {'functions':>9} {'longest':>7}")
    failures = []
    for folder in FOLDERS:
        paths = sources(folder)
        counts = [len(path.read_text(encoding="utf-8").splitlines()) for path in paths]
        lengths = [length for path in paths for _, length in functions(path)]
        if not counts:
            continue
        row = (len(counts), sum(counts), int(statistics.median(counts)), max(counts), len(lengths), max(lengths, default=0))
        print(f"{folder:12} {row[0]:5} {row[1]:6} {row[2]:6} {row[3]:7} {row[4]:9} {row[5]:7}")
        if folder != "tests":
            failures += [item for path in paths for item in over_budget(path)]
    unexplained = 0
    for name, lines, limit in failures:
        reason = REASONS.get(name)
        unexplained += reason is None
        print(f"{name}: {lines} lines, budget {limit}: {reason or 'OVER BUDGET'}")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
