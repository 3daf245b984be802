"""What report.py draws and compares."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import report
from benchmarks._curves import buffer_line, comparison, distribution, latency_curve, read_measurement
from bistream.client.report import ChunkRecord, SessionReport
from bistream.errors import InvalidInputError

RESULTS = Path(__file__).resolve().parents[3] / "benchmarks" / "results"
WITH_CALLERS = ("sessions-h200", "graphs-h200", "first-audio-bursts-h200", "first-audio-h200", "cosyvoice3-h200")
CHUNKS = st.lists(st.tuples(st.floats(0.0, 3.0), st.floats(0.01, 3.0)), min_size=1, max_size=12)


@settings(max_examples=100, deadline=None)
@given(CHUNKS)
def test_the_buffer_is_empty_exactly_in_the_gaps(pieces: list[tuple[float, float]]) -> None:
    chunks, now = [], 0.0
    for delay_s, audio_s in pieces:
        now += delay_s
        chunks.append(ChunkRecord(now, audio_s, 0))
    times, levels = buffer_line(chunks)
    assert times == sorted(times) and min(levels) >= 0.0 and levels[-1] == 0.0
    rises = sum(max(0.0, after - before) for before, after in zip(levels, levels[1:], strict=False))
    assert rises == pytest.approx(sum(chunk.audio_s for chunk in chunks)), "all audio enters the buffer"
    corners = list(zip(times, levels, strict=True))
    silences = [b[0] - a[0] for a, b in zip(corners, corners[1:], strict=False) if a[1] == b[1] == 0.0 and a[0] >= chunks[0].arrived_s]
    assert sum(silences) == pytest.approx(sum(SessionReport("", chunks).gaps()), abs=1e-6)


def test_the_distribution_ends_with_all_sessions() -> None:
    sessions = [SessionReport("", [ChunkRecord(first_s, 1.0, 0)]) for first_s in (0.3, 0.1, 0.2)]
    values, shares = distribution(sessions)
    assert values == pytest.approx([100.0, 200.0, 300.0]) and shares == pytest.approx([1 / 3, 2 / 3, 1.0])


@pytest.mark.parametrize("name", WITH_CALLERS)
def test_results_of_this_project_are_read(name: str) -> None:
    found = read_measurement(RESULTS / f"{name}.json")
    callers, values = latency_curve(found, "p50")
    assert found.name == name and callers == sorted(set(callers)) and len(callers) > 1 and min(values) > 0


def test_two_results_are_compared_where_both_measured() -> None:
    kernels, graphs = (read_measurement(RESULTS / f"{name}-h200.json", name) for name in ("sessions", "graphs"))
    rows = comparison(kernels, graphs)
    assert rows[0][2:4] == ("sessions", "graphs")
    assert {row[0] for row in rows[1:]} == {1, 64, 256}, "only what both measured"
    by_name = {row[:2]: row[2:] for row in rows[1:]}
    assert by_name[64, "first audio p50 ms"] == (310.0, 496.6, "1.60")
    assert by_name[256, "failed"][:2] == (0, 68)


def test_pictures_are_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also from a folder of dataset.py, of which one number of callers spoke nothing."""
    chunks = [{"arrived_s": 0.2, "audio_s": 1.0, "text_consumed": 0}, {"arrived_s": 1.5, "audio_s": 1.0, "text_consumed": 0}]
    run = {"sessions": 1, "sessions_without_gap": 0, "real_time_factor": 0.5, "time_to_first_audio_ms": {"p50": 200.0, "p99": 200.0}}
    runs = [{**run, "num_tasks": 1, "failed": 0}, {**run, "num_tasks": 2, "failed": 1, "time_to_first_audio_ms": {}}]
    (tmp_path / "result.json").write_text(json.dumps({"hardware": "a machine", "metrics": {"runs": runs}}))
    said = [
        {"run": 0, "num_tasks": tasks, "id": "a", "report": {"session_id": "a", "chunks": given, "wall_s": 2.0, "error": error}}
        for tasks, given, error in ((1, chunks, None), (2, [], "BUSY: x"))
    ]
    lines = [*said, {"run": 0, "num_tasks": 1, "part": 1, "ended_s": 2.0}]
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert report.main([str(tmp_path), str(RESULTS / "sessions-h200.json"), "--names", "here", "there", "--out", str(tmp_path)]) == 0
    for name in ("latency", "distribution", "buffer"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "first audio p50 ms" in capsys.readouterr().out


def test_what_cannot_be_drawn_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, words in (("lm-h200.json", "not the result"), ("gone.json", "not the result")):
        assert report.main([str(RESULTS / name), "--out", str(tmp_path)]) == 2
        assert words in capsys.readouterr().err
    (tmp_path / "result.json").write_text('{"metrics": {"runs": []}}')
    with pytest.raises(InvalidInputError, match="no run with a number of callers"):
        read_measurement(tmp_path)
