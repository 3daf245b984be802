"""Shared by the benchmarks: the format of a result, and where it is stored. Loads no torch.

A result is ``{"name", "commit", "date", "hardware", "million_additions_ms", "command", "config", "metrics"}``: the last line that a
benchmark prints, and a file under ``benchmarks/results/`` when it is given ``--out``.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

ROOT = Path(__file__).resolve().parents[1]


def commit() -> str:
    """The commit that is measured: ``BISTREAM_COMMIT`` where there is no git repository."""
    if "BISTREAM_COMMIT" in os.environ:
        return os.environ["BISTREAM_COMMIT"]
    done = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def gpu_line(field: str) -> str | None:
    """A field that ``nvidia-smi`` reports for the first GPU; None without one."""
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--id=0", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def hardware() -> str:
    """The host, after the name of its first GPU."""
    host = f"{os.cpu_count()} x {platform.processor() or platform.machine()}"
    return ", ".join(filter(None, [gpu_line("name"), host]))


def million_additions_ms() -> float:
    """The speed of this host's processors while it measures: shared hosts have run at half of their speed, which doubles all times on
    the processors."""
    began, total = time.perf_counter(), 0
    for number in range(1_000_000):
        total += number
    return round(1000 * (time.perf_counter() - began), 1)


def describe(name: str, config: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, Any]:
    """A result, with the fields common to all benchmarks."""
    return {
        "name": name,
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "hardware": hardware(),
        "million_additions_ms": million_additions_ms(),
        "command": " ".join(["python", os.path.relpath(sys.argv[0], ROOT), *without_api_key(sys.argv[1:])]),
        "config": dict(config),
        "metrics": dict(metrics),
    }


def without_api_key(arguments: Sequence[str]) -> list[str]:
    """The command line without the value of ``--api-key``; argparse takes its abbreviations as well."""
    kept: list[str] = []
    for word in arguments:
        if kept and _is_api_key(kept[-1]):
            kept.append("KEY")
        else:
            option, equals, _ = word.partition("=")
            kept.append(f"{option}=KEY" if equals and _is_api_key(option) else word)
    return kept


def _is_api_key(option: str) -> bool:
    return len(option) > 2 and "--api-key".startswith(option)


def report(name: str, config: Mapping[str, Any], metrics: Mapping[str, Any], out: str | Path | None) -> None:
    """Print the result as one line of JSON, and write it to ``out`` if given."""
    result = describe(name, config, metrics)
    if out is not None:
        Path(out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result))


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def percentiles(values: Sequence[float], *ranks: float) -> dict[str, float]:
    """{"p50": ..., ...}, rounded to microseconds when the values are milliseconds."""
    return {f"p{rank:g}": round(float(np.percentile(values, rank)), 3) for rank in ranks}


def table(rows: Sequence[Sequence[object]]) -> None:
    """Print the rows in columns; the first row is the heading."""
    widths = [max(len(str(row[column])) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        import torch  # noqa: PLC0415  (as in hardware)

        torch.cuda.synchronize(device)
