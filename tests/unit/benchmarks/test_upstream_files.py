"""Upstream's summary: what programs that read it look for."""

from __future__ import annotations

import re

import pytest

from benchmarks._summary import rtf_text
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
