"""Draws results of load tests: time to the first audio against concurrent callers, median and 99 %, as latency.png.

    python benchmarks/report.py build/benchmark/streaming/result.json --out build/report
    python benchmarks/report.py benchmarks/results/sessions-h200.json benchmarks/results/graphs-h200.json --names kernels graphs --out OUT

A result is a file with runs of several numbers of callers: of ``first_audio.py`` or ``dataset.py``, or one of benchmarks/results
(``sessions``, ``graphs``, ``first_audio``). Hollow where callers failed or heard a gap. Needs requirements/benchmarks.txt.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import matplotlib

matplotlib.use("Agg")  # before pyplot: no display

import matplotlib.pyplot as plt

from bistream.client.exit_codes import EXIT_OK, EXIT_USAGE, fail
from bistream.errors import InvalidInputError

COLOURS = ("tab:blue", "tab:orange", "tab:green")  # of the results
_CLOSED = re.compile(r"closed (\d+)")  # loads of first_audio.py with a number of callers


@dataclass(frozen=True)
class Point:
    """A run: concurrent callers, milliseconds to the first audio by name (p50, p99, ...), whether callers failed or heard a gap."""

    callers: int
    first_audio_ms: Mapping[str, float]
    is_troubled: bool


@dataclass(frozen=True)
class Measurement:
    name: str
    hardware: str
    points: list[Point]


def read_measurement(path: Path, name: str | None = None) -> Measurement:
    """Raises ``InvalidInputError``."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        metrics = result["metrics"]
        runs = (metrics["sessions"] if "sessions" in metrics else metrics)["runs"]  # a file of several parts has them under their names
        points = sorted((_point(run) for run in runs if _callers(run) is not None), key=lambda point: point.callers)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInputError(f"{path} is not the result of a benchmark ({type(error).__name__}: {error}); give another.") from None
    if not points:
        raise InvalidInputError(f"{path} has no run with a number of callers; give a result of dataset.py or first_audio.py.")
    return Measurement(name or path.stem, str(result.get("hardware", "unknown")), points)


def _callers(run: Mapping[str, Any]) -> int | None:
    if "num_tasks" in run:
        return int(run["num_tasks"])
    closed = _CLOSED.fullmatch(run.get("load", ""))
    return int(closed[1]) if closed else None


def _point(run: Mapping[str, Any]) -> Point:
    times = run["time_to_first_audio_ms"] if "time_to_first_audio_ms" in run else run["first_audio_client_ms"]
    done = run["sessions"] - run["failed"]
    with_gap = run["sessions_with_gap"] if "sessions_with_gap" in run else done - run["sessions_without_gap"]
    return Point(_callers(run) or 0, dict(times), bool(run["failed"] or with_gap))


def latency_curve(measurement: Measurement, rank: str) -> tuple[list[int], list[float]]:
    """Numbers of callers and milliseconds of a percentile; of several runs with one number of callers, their mean."""
    by_callers: dict[int, list[float]] = {}
    for point in measurement.points:
        if rank in point.first_audio_ms:
            by_callers.setdefault(point.callers, []).append(point.first_audio_ms[rank])
    return list(by_callers), [sum(values) / len(values) for values in by_callers.values()]


def draw(measurements: Sequence[Measurement], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(7.0, 4.0), dpi=130)
    axes.set(title="time to the first audio", xlabel="concurrent callers", ylabel="ms")
    axes.grid(alpha=0.3)
    points = [point for measurement in measurements for point in measurement.points]
    for measurement, colour in zip(measurements, COLOURS, strict=False):
        troubled = {point.callers for point in measurement.points if point.is_troubled}
        for rank, marker, line in (("p50", "o", "-"), ("p99", "^", ":")):
            callers, values = latency_curve(measurement, rank)
            axes.plot(callers, values, line, color=colour, marker=marker, label=f"{measurement.name}, {rank}")
            for number, value in zip(callers, values, strict=True):
                if number in troubled:
                    axes.plot(number, value, marker, color=colour, markerfacecolor="white")
    if any(point.is_troubled for point in points):
        axes.plot([], [], "o", color="gray", markerfacecolor="white", label="some callers failed or heard a gap")
    ticks = sorted({point.callers for point in points})
    if ticks[-1] > 32:
        axes.set_xscale("symlog", base=2, linthresh=1)
    axes.set_xticks(ticks, [str(tick) for tick in ticks], fontsize="small", rotation=45)
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small")
    hardware = "; ".join(sorted({measurement.hardware for measurement in measurements}))
    figure.text(0.995, 0.01, hardware, ha="right", fontsize="x-small", color="gray")
    figure.tight_layout()
    figure.savefig(path, metadata={"Software": None})  # the same picture from the same numbers
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULT", help="up to three files")
    parser.add_argument("--names", nargs="+", metavar="NAME", help="of the results in the picture (default: of their files)")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the picture goes")
    options = parser.parse_args(arguments)
    names = options.names or [None] * len(options.results)
    if len(options.results) > len(COLOURS) or len(names) != len(options.results):
        parser.error(f"give at most {len(COLOURS)} results, and --names for each or none")
    try:
        measurements = [read_measurement(path, name) for path, name in zip(options.results, names, strict=True)]
        options.out.mkdir(parents=True, exist_ok=True)
        draw(measurements, options.out / "latency.png")
    except InvalidInputError as error:
        return fail(error.sentence, EXIT_USAGE)
    except OSError as error:
        return fail(str(error), EXIT_USAGE)
    print(f"wrote {options.out / 'latency.png'}")
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
