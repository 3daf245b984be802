"""Draws one or two results of load tests, and compares two.

    python benchmarks/report.py build/streaming --out build/report
    python benchmarks/report.py benchmarks/results/sessions-h200.json benchmarks/results/graphs-h200.json --names kernels graphs --out OUT

A result is a file of benchmarks/results with runs of several numbers of callers (``sessions``, ``graphs``, ``first_audio``), or a folder
that ``dataset.py`` wrote. Pictures, as PNG:

- ``latency.png``: time to the first audio against concurrent callers, median and 99 %; hollow where callers failed or heard a gap;
- ``distribution.png``: which share of the sessions had heard audio after how long, by number of callers (folders only);
- ``buffer.png``: audio that each listener had left, over time (folders only; the largest number of callers, or --callers).

Two results are also compared in a table of what both measured. Needs requirements/benchmarks.txt.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import matplotlib

matplotlib.use("Agg")  # before pyplot: no display

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks._common import table
from benchmarks._curves import Measurement, buffer_line, comparison, distribution, latency_curve, read_measurement
from bistream.client.exit_codes import EXIT_OK, EXIT_USAGE, fail
from bistream.errors import InvalidInputError

SIZE_INCHES, DOTS_PER_INCH = (7.0, 4.0), 130
COLOURS = ("tab:blue", "tab:orange")  # of the results
MOST_LINES = 40  # of a buffer picture


def draw_latency(measurements: Sequence[Measurement], out: Path) -> Path:
    figure, axes = _picture("time to the first audio", "concurrent callers", "ms")
    for measurement, colour in zip(measurements, COLOURS, strict=False):
        troubled = {point.callers for point in measurement.points if point.failed or point.with_gap}
        for rank, marker, line in (("p50", "o", "-"), ("p99", "^", ":")):
            callers, values = latency_curve(measurement, rank)
            if callers:
                label = f"{measurement.name}, {'median' if rank == 'p50' else '99 %'}"
                axes.plot(callers, values, line, color=colour, marker=marker, label=label)
                hollow = [(number, value) for number, value in zip(callers, values, strict=True) if number in troubled]
                if hollow:
                    axes.plot(*zip(*hollow, strict=True), marker, color=colour, markerfacecolor="white")
    if any(point.failed or point.with_gap for measurement in measurements for point in measurement.points):
        axes.plot([], [], "o", color="gray", markerfacecolor="white", label="some callers failed or heard a gap")
    most = max(point.callers for measurement in measurements for point in measurement.points)
    if most > 32:
        axes.set_xscale("symlog", base=2, linthresh=1)
    ticks = sorted({point.callers for measurement in measurements for point in measurement.points})
    axes.set_xticks(ticks, [str(tick) for tick in ticks], fontsize="small", rotation=45)
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    return _save(figure, axes, out / "latency.png", measurements)


def draw_distribution(measurements: Sequence[Measurement], out: Path) -> Path:
    figure, axes = _picture("distribution of the time to the first audio", "ms", "share of sessions")
    for measurement, style in zip(measurements, ("-", "--"), strict=False):
        for index, (callers, sessions) in enumerate(measurement.sessions.items()):
            if sessions:
                values, shares = distribution(sessions)
                axes.step(values, shares, style, where="post", color=f"C{index % 10}", label=f"{measurement.name}, {callers} callers")
    axes.set_ylim(0, 1.02)
    return _save(figure, axes, out / "distribution.png", measurements)


def draw_buffers(measurements: Sequence[Measurement], callers: int | None, out: Path) -> Path:
    """The sessions of one number of callers of each measurement; without sessions of that number it has no line."""
    figure, axes = _picture("audio left to play", "s since the request", "s of audio")
    for measurement, colour in zip(measurements, COLOURS, strict=False):
        chosen = max(measurement.sessions, default=0) if callers is None else callers
        for index, report in enumerate(measurement.sessions.get(chosen, [])[:MOST_LINES]):
            label = f"{measurement.name}, {chosen} callers" if index == 0 else None
            axes.plot(*buffer_line(report.chunks), color=colour, alpha=0.4, linewidth=0.8, label=label)
    axes.set_ylim(bottom=0)
    return _save(figure, axes, out / "buffer.png", measurements)


def _picture(title: str, x_label: str, y_label: str) -> tuple[Figure, Axes]:
    figure, axes = plt.subplots(figsize=SIZE_INCHES, dpi=DOTS_PER_INCH)
    axes.set_title(title)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.3)
    return figure, axes


def _save(figure: Figure, axes: Axes, path: Path, measurements: Sequence[Measurement]) -> Path:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small")
    hardware = "; ".join(sorted({measurement.hardware for measurement in measurements}))
    figure.text(0.995, 0.01, hardware, ha="right", fontsize="x-small", color="gray")
    figure.tight_layout()
    figure.savefig(path, metadata={"Software": None})  # the same picture from the same numbers
    plt.close(figure)
    return path


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULT", help="one or two files or folders")
    parser.add_argument("--names", nargs="+", metavar="NAME", help="of the results in the pictures (default: of their files)")
    parser.add_argument("--callers", type=int, metavar="N", help="of the buffer picture")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the pictures go")
    options = parser.parse_args(arguments)
    if len(options.results) > 2:
        parser.error("give one result, or two to compare")
    if options.names is not None and len(options.names) != len(options.results):
        parser.error("--names takes a name for each result")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    names = options.names or [None] * len(options.results)
    try:
        measurements = [read_measurement(path, name) for path, name in zip(options.results, names, strict=True)]
        options.out.mkdir(parents=True, exist_ok=True)
        pictures = [draw_latency(measurements, options.out)]
        if any(measurement.sessions for measurement in measurements):
            pictures += [draw_distribution(measurements, options.out), draw_buffers(measurements, options.callers, options.out)]
    except InvalidInputError as error:
        return fail(error.sentence, EXIT_USAGE)
    except OSError as error:
        return fail(str(error), EXIT_USAGE)
    if len(measurements) == 2:
        table(comparison(*measurements))
    for picture in pictures:
        print(f"wrote {picture}")
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
