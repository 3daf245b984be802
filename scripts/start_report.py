#!/usr/bin/env python3
"""Where the time of a server's start went: the lines ``start: ..., N s`` of its logs as one table, by the time at which each part began.

    start_report.py build/server.log
    bash run.sh serve 2>keeper.log; start_report.py keeper.log build/server.log
    docker logs bistream 2>&1 | start_report.py -

Parts of different processes run beside each other, and a part may contain others. Only the last start of each process is shown.
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bistream.start_phases import INTERPRETER

# The formats of bistream.triton.startup and scripts/serve.py; what stands before them is the name of a server of several.
_LINE = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) [A-Z]+ (?P<process>\w+)(?: [\w.]+)?: start: (?P<name>.+), (?P<seconds>\d+\.\d+) s$"
)
BAR = 40  # characters for the whole start


@dataclass(frozen=True)
class Part:
    """began, ended: seconds since an unknown moment."""

    process: str
    name: str
    began: float
    ended: float


def read_parts(lines: Iterable[str]) -> list[Part]:
    """In the order of the lines."""
    parts = []
    for line in lines:
        if (found := _LINE.search(line.rstrip())) is not None:
            ended = datetime.datetime.strptime(found["time"], "%Y-%m-%d %H:%M:%S,%f").timestamp()
            parts.append(Part(found["process"], found["name"], ended - float(found["seconds"]), ended))
    return parts


def last_start(parts: Sequence[Part]) -> list[Part]:
    """Of each process what follows its last beginning, by the time at which it began."""
    kept: dict[str, list[Part]] = {}
    for part in sorted(parts, key=lambda part: part.ended):
        if part.name == INTERPRETER or part.process not in kept:
            kept[part.process] = []
        kept[part.process].append(part)
    return sorted((part for process in kept.values() for part in process), key=lambda part: (part.began, -part.ended))


def table(parts: Sequence[Part]) -> list[str]:
    zero, end = min(part.began for part in parts), max(part.ended for part in parts)
    scale = BAR / max(end - zero, 1e-3)
    width = max(len(part.process) for part in parts)
    rows = [f"{'from':>7} {'for':>7}  {'process':{width}}  {'':{BAR}}  part"]
    for part in parts:
        left = min(BAR - 1, round((part.began - zero) * scale))
        bar = " " * left + "#" * max(1, round((part.ended - part.began) * scale))
        rows.append(f"{part.began - zero:7.2f} {part.ended - part.began:7.2f}  {part.process:{width}}  {bar[:BAR]:{BAR}}  {part.name}")
    return [*rows, f"{end - zero:.2f} s in all"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", nargs="+", help="files; - is the standard input")
    options = parser.parse_args(arguments)
    lines: list[str] = []
    for name in options.logs:
        try:
            lines += sys.stdin.readlines() if name == "-" else Path(name).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError as error:
            print(f"start_report.py: {name} cannot be read ({error.strerror}).", file=sys.stderr)
            return 1
    parts = last_start(read_parts(lines))
    if not parts:
        print("start_report.py: there is no line of a start; name the server's log (log_level info or debug).", file=sys.stderr)
        return 1
    print("\n".join(table(parts)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
