"""One judge as a program:  python -m bistream.evaluation.judges NAME MODEL

Reads lines of JSON, ``{"path", "text", "language"}`` of a WAV file, and answers each with a line of scores. The first line says with which
packages it works, the last one what it has cost; a judge that cannot be loaded says why instead. No other model has trained on what it
hears: only scores leave this program.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

_LINES = sys.stdout
sys.stdout = sys.stderr  # what packages print is no answer


def _say(**values: Any) -> None:
    print(json.dumps(values), file=_LINES, flush=True)


def _seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main(name: str, model: str) -> None:
    try:
        module = importlib.import_module(f"bistream.evaluation.judges.{name}")
        judge: Callable[[dict[str, Any]], dict[str, Any]] = module.load(model)
        packages = {package: version(package) for package in module.PACKAGES}
    except Exception as error:  # of packages that are missing, or of a model that is
        _say(unavailable=f"{type(error).__name__}: {error}")
        return
    loaded_s = _seconds()
    _say(packages=packages)
    for line in sys.stdin:
        _say(**judge(json.loads(line)))
    _say(load_s=round(loaded_s, 1), judge_s=round(_seconds() - loaded_s, 1), memory_mb=_peak_mb())


def _peak_mb() -> int:
    """0 where the system does not tell. ``getrusage`` counts the memory of the process that started this one."""
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="ascii").splitlines() if status.exists() else []
    return next((int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM:")), 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
