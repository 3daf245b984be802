"""Upstream's summary files: what programs that read them look for, and the statistics of a measurement alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks._upstream_files import rtf_text, statistics_text, write_files
from bistream.client.report import ChunkRecord, SessionReport


def report(first_s: float, second_s: float | None, wall_s: float, error: str | None = None) -> SessionReport:
    chunks = [ChunkRecord(first_s, 1.0, 0)] + ([] if second_s is None else [ChunkRecord(second_s, 2.0, 0)])
    return SessionReport("x", chunks, wall_s=wall_s, error=error)


def value(text: str, name: str) -> float:
    """As programs read these files: NAME: NUMBER at the start of a line."""
    match = re.search(rf"^{name}:\s*([0-9.]+)", text, re.MULTILINE)
    assert match is not None, name
    return float(match[1])


def test_streaming() -> None:
    text = rtf_text("streaming", [report(0.1, 0.3, 1.0), report(0.2, 0.8, 3.0), report(9.0, None, 9.0, error="BUSY: x")], 3.0)
    assert text.startswith(
        "Mode: streaming\nRTF: 0.5000\ntotal_duration: 6.000 seconds\n(0.00 hours)\nprocessing time: 3.000 seconds (0.00 hours)\n"
    )
    expected = {
        "total_request_latency": (1000.0, 2000.0, 2000.0),
        "first_chunk_latency": (2.5, 150.0, 150.0),
        "second_chunk_latency": (40.0, 400.0, 400.0),
    }
    for name, (variance, median, average) in expected.items():
        assert value(text, f"{name}_variance") == pytest.approx(variance)
        assert value(text, f"{name}_50_percentile_ms") == median
        assert value(text, f"average_{name}_ms") == average
        assert value(text, f"{name}_90_percentile_ms") <= value(text, f"{name}_95_percentile_ms") <= value(text, f"{name}_99_percentile_ms")
    headings = [line for line in text.splitlines() if line.startswith("---")]
    assert headings == ["--- Total Request Latency ---", "--- First Chunk Latency ---", "--- Second Chunk Latency ---"]


def test_offline() -> None:
    text = rtf_text("offline", [report(1.0, None, 1.0), report(3.0, None, 3.0)], 4.0)
    assert (value(text, "RTF"), value(text, "latency_variance"), value(text, "average_latency_ms")) == (2.0, 1000.0, 2000.0)
    assert value(text, "latency_50_percentile_ms") == 2000.0 and "chunk" not in text


def test_without_audio_there_is_no_number() -> None:
    text = rtf_text("streaming", [report(0.1, None, 1.0, error="BUSY: x")], 1.0)
    assert "RTF: inf" in text and text.endswith("No latency data collected.\n") and "nan" not in text
    assert "No second chunk latency data collected." in rtf_text("streaming", [report(0.1, None, 1.0)], 1.0)


def statistics(count: int, infer_ms: int) -> dict[str, Any]:
    """As tritonclient gives them: 64-bit numbers as text, zeros left out."""
    times = {"compute_infer": {"count": str(count), "ns": str(infer_ms * 1_000_000)}, "compute_input": {"count": str(count)}}
    busy = {"name": "cosyvoice2", "version": "1", "last_inference": "1", "inference_stats": {"queue": {"count": str(count)}, **times}}
    return {"model_stats": [{**busy, "batch_stats": [{"batch_size": "1", **times}]}, {"name": "idle", "version": "1"}]}


def test_statistics_are_those_of_the_measurement() -> None:
    text = statistics_text(statistics(10, 500), statistics(14, 900))
    lines = text.splitlines()
    assert lines[0] == "model name is cosyvoice2 " and "idle" not in text
    assert lines[1] == "queue time 0.00  s, compute infer time 0.40  s, compute input time 0.00  s, compute output time 0.00  s "
    assert lines[2].startswith("execuate inference with batch_size 1  total 4     times, total_infer_time 400.00    ms, ")
    assert lines[2].endswith("=100.00 ms ") and lines[3].startswith("input 0.00      ms, avg 0.00 ms, output 0.00")
    assert statistics_text(statistics(14, 900), statistics(14, 900)).count("execuate") == 0
    assert "total 14 " in statistics_text({}, statistics(14, 900))


def test_files_have_upstreams_names(tmp_path: Path) -> None:
    write_files(tmp_path, "test_zh", "a", "b", {"c": 1})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model_config-test_zh.json", "rtf-test_zh.txt", "stats_summary-test_zh.txt"]
