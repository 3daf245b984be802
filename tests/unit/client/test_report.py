"""A listener's experience, computed from arrival times."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.client.report import ChunkRecord, SessionReport


def test_a_report_without_audio() -> None:
    report = SessionReport("s", [], error="BUSY: x")
    summary = report.as_dict()
    assert (summary["time_to_first_audio_s"], summary["real_time_factor"], summary["underruns"]) == (None, None, 0)
    assert not summary["audio_began_before_text_ended"]
    assert report.as_text() == "no audio arrived"
    json.dumps(summary, allow_nan=False)


def test_gaps_are_the_time_a_listener_waits() -> None:
    report = SessionReport("s", [ChunkRecord(1.0, 0.5, 1), ChunkRecord(1.4, 0.5, 2), ChunkRecord(2.5, 1.0, 3), ChunkRecord(2.6, 1.0, 4)])
    assert report.gaps() == [pytest.approx(0.5)]
    report.text_ended_s, report.wall_s = 1.2, 3.0
    summary = report.as_dict()
    assert (summary["audio_s"], summary["real_time_factor"], summary["underruns"]) == (3.0, 1.0, 1)
    assert summary["audio_began_before_text_ended"]
    assert "1 gaps" in report.as_text() and "(before the text had ended)" in report.as_text()
    report.text_ended_s = 0.9
    assert not report.audio_began_before_text_ended
    assert "text" not in report.as_text(), "a recording has none"


@given(st.lists(st.tuples(st.floats(0, 2), st.floats(0.01, 1)), min_size=1, max_size=10))
def test_playback_lasts_as_long_as_its_audio_and_its_gaps(steps: list[tuple[float, float]]) -> None:
    chunks, now = [], 0.0
    for pause_s, audio_s in steps:
        now += pause_s
        chunks.append(ChunkRecord(now, audio_s, 0))
    report = SessionReport("s", chunks)
    ends_at = chunks[0].arrived_s + report.audio_s + sum(report.gaps())
    assert ends_at >= chunks[-1].arrived_s + chunks[-1].audio_s - 1e-9
    assert all(gap > 0 for gap in report.gaps())
