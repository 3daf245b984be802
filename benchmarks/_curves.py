"""What ``report.py`` draws, read from results of several benchmarks. No drawing here."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks._callers import report_of
from benchmarks._records import read_records
from benchmarks._summary import succeeded
from bistream.client.report import ChunkRecord, SessionReport
from bistream.errors import InvalidInputError

_CLOSED = re.compile(r"closed (\d+)")  # loads of first_audio.py with a number of callers


@dataclass(frozen=True)
class Point:
    """A run: concurrent callers, milliseconds to the first audio by name (p50, p99, ...), real-time factor where it has one, callers
    without audio or with a gap."""

    callers: int
    first_audio_ms: Mapping[str, float]
    real_time_factor: float | None
    failed: int
    with_gap: int


@dataclass(frozen=True)
class Measurement:
    """One result. sessions: reports by number of callers, where the result has them (``dataset.py``)."""

    name: str
    hardware: str
    points: list[Point]
    sessions: dict[int, list[SessionReport]] = field(default_factory=dict)


def read_measurement(path: Path, name: str | None = None) -> Measurement:
    """Of a file of ``benchmarks/results``, or the folder of ``dataset.py``. Raises ``InvalidInputError``."""
    file = path / "result.json" if path.is_dir() else path
    try:
        result = json.loads(file.read_text(encoding="utf-8"))
        runs = _runs(result["metrics"])
        points = sorted((_point(run) for run in runs if _callers(run) is not None), key=lambda point: point.callers)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInputError(f"{file} is not the result of a benchmark ({type(error).__name__}: {error}); give another.") from None
    if not points:
        raise InvalidInputError(f"{file} has no run with a number of callers; give a result of dataset.py, sessions.py or first_audio.py.")
    sessions: dict[int, dict[str, SessionReport]] = {}
    for record in read_records(file.parent / "records.jsonl") if path.is_dir() else []:
        if "report" in record and record["run"] == 0:
            sessions.setdefault(record["num_tasks"], {})[record["id"]] = report_of(record["report"])
    reports = {callers: succeeded(list(by_id.values())) for callers, by_id in sorted(sessions.items())}
    return Measurement(name or (path.name if path.is_dir() else path.stem), str(result.get("hardware", "unknown")), points, reports)


def _runs(metrics: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """measure.py writes the metrics of all parts into one file where it forces a tier."""
    found: Sequence[Mapping[str, Any]] = metrics["sessions"]["runs"] if "sessions" in metrics else metrics["runs"]
    return found


def _callers(run: Mapping[str, Any]) -> int | None:
    if "num_tasks" in run:
        return int(run["num_tasks"])
    closed = _CLOSED.fullmatch(run.get("load", ""))
    return int(closed[1]) if closed else None


def _point(run: Mapping[str, Any]) -> Point:
    times = run["time_to_first_audio_ms"] if "time_to_first_audio_ms" in run else run["first_audio_client_ms"]
    done = run["sessions"] - run["failed"]
    with_gap = run["sessions_with_gap"] if "sessions_with_gap" in run else done - run["sessions_without_gap"]
    return Point(_callers(run) or 0, dict(times), run.get("real_time_factor"), run["failed"], with_gap)


def latency_curve(measurement: Measurement, rank: str) -> tuple[list[int], list[float]]:
    """Numbers of callers and milliseconds of a percentile; of several runs with one number of callers, their mean."""
    by_callers: dict[int, list[float]] = {}
    for point in measurement.points:
        if rank in point.first_audio_ms:
            by_callers.setdefault(point.callers, []).append(point.first_audio_ms[rank])
    return list(by_callers), [sum(values) / len(values) for values in by_callers.values()]


def distribution(sessions: Sequence[SessionReport]) -> tuple[list[float], list[float]]:
    """Milliseconds to the first audio, sorted, and the share of sessions that had heard it by then."""
    values = sorted(1000 * report.chunks[0].arrived_s for report in sessions)
    return values, [(index + 1) / len(values) for index in range(len(values))]


def buffer_line(chunks: Sequence[ChunkRecord]) -> tuple[list[float], list[float]]:
    """Corners of a line: seconds since the request, seconds of audio that a listener has left who plays from the first chunk on at 1x.

    It rises with each chunk and falls while it is played; at 0 the listener hears a gap, unless it is the end.
    """
    times, levels = [0.0], [0.0]
    level = now = 0.0
    for index, chunk in enumerate(chunks):
        if index:
            empty_at = now + level
            if empty_at < chunk.arrived_s:
                times.append(empty_at)
                levels.append(0.0)
            level = max(0.0, empty_at - chunk.arrived_s)
        now = chunk.arrived_s
        times += [now, now]
        levels += [level, level + chunk.audio_s]
        level += chunk.audio_s
    return [*times, now + level], [*levels, 0.0]


def comparison(first: Measurement, second: Measurement) -> list[Sequence[object]]:
    """Rows of a table: what both measured with the same number of callers, and the second over the first."""
    rows: list[Sequence[object]] = [("callers", "value", first.name, second.name, "ratio")]
    common = {point.callers for point in first.points} & {point.callers for point in second.points}
    for callers in sorted(common):
        one, other = (next(point for point in each.points if point.callers == callers) for each in (first, second))
        for rank in ("mean", "p50", "p90", "p99"):
            if rank in one.first_audio_ms and rank in other.first_audio_ms:
                rows.append(_compared(callers, f"first audio {rank} ms", one.first_audio_ms[rank], other.first_audio_ms[rank]))
        if one.real_time_factor and other.real_time_factor:
            rows.append(_compared(callers, "real-time factor", one.real_time_factor, other.real_time_factor))
        rows.append((callers, "failed", one.failed, other.failed, ""))
        rows.append((callers, "with a gap", one.with_gap, other.with_gap, ""))
    return rows


def _compared(callers: int, name: str, one: float, other: float) -> Sequence[object]:
    return callers, name, one, other, f"{other / one:.2f}" if one else ""
