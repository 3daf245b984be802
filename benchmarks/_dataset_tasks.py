"""A client process of ``dataset.py``: tasks that speak rows of a data set one after another (``_client_processes.py``)."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._client_processes import Result, Task, serve
from benchmarks._requests import Manner, Speaker, Spoken
from bistream.client.audio import WavWriter
from bistream.client.connection import ClientSecurity
from bistream.client.report import SessionReport
from scripts._dataset import Row

T = TypeVar("T")


@dataclass(frozen=True)
class Share:
    """The rows of one task, and where their WAV files go."""

    task: int
    rows: tuple[Row, ...]
    wavs: Path | None


def shares_of(rows: Sequence[T], tasks: int) -> list[Sequence[T]]:
    """Consecutive rows for each task, the first ones one more where the rows do not divide evenly (as upstream); no empty share."""
    tasks = min(tasks, len(rows))
    ends = [number * (len(rows) // tasks) + min(number, len(rows) % tasks) for number in range(tasks + 1)]
    return [rows[begin:end] for begin, end in zip(ends, ends[1:], strict=False)]


def plan_of(manner: Manner, shares: Sequence[Share]) -> dict[str, Any]:
    """As JSON, with which this program is started."""
    rows = [{**asdict(share), "rows": [asdict(row) for row in share.rows]} for share in shares]
    plan: dict[str, Any] = _plain({"manner": asdict(manner), "shares": rows})
    return plan


def _plain(value: Any) -> Any:
    """Paths as text."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, Path) else value


def prepare(plan: dict[str, Any]) -> list[Task]:
    manner = Manner(**{**plan["manner"], "security": ClientSecurity(**plan["manner"]["security"])})

    def task(values: dict[str, Any]) -> Task:
        rows = tuple(Row(**{**row, "prompt_audio": Path(row["prompt_audio"]), "target_tokens": ()}) for row in values["rows"])
        share = Share(values["task"], rows, None if values["wavs"] is None else Path(values["wavs"]))
        return Task(0.0, lambda began: speak(manner, share, began))

    return [task(values) for values in plan["shares"]]


def speak(manner: Manner, share: Share, began: float) -> Iterator[Result]:
    """A record for each row: its report, when it began and ended. The last one is ``is_lost`` where the server was."""
    speaker = Speaker(manner)
    try:
        for row in share.rows:
            begin_s = time.monotonic() - began
            try:
                spoken = speaker.speak(row)
            except ValueError as error:  # of its recording
                spoken = Spoken(SessionReport(row.id, [], error=str(error)), np.zeros(0, np.float32), False)
            ended_s = time.monotonic() - began
            if share.wavs is not None and spoken.waveform.size:
                with WavWriter(share.wavs / f"{row.id}.wav") as wav:
                    wav.write(spoken.waveform)
            yield {
                "task": share.task,
                "began_s": begin_s,
                "ended_s": ended_s,
                "is_lost": spoken.is_lost,
                "report": asdict(spoken.report),
            }
            if spoken.is_lost:
                return
    finally:
        speaker.close()


if __name__ == "__main__":
    serve(prepare)
