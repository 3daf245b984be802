"""What a session's record says agrees with what its caller received, whatever way the session ends."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.errors import BusyError
from bistream.metrics.catalogue import OUTER_STAGES
from bistream.metrics.session_log import LOGGER
from bistream.sessions.session_record import SessionRecord, Timestamps
from tests.formats import SAMPLE_RATE
from tests.recorded import nonzero, sample
from tests.unit.sessions.fakes import append_request, cancel_request, start_request
from tests.unit.sessions.house import House, assert_whole, tokens_of

OPERATIONS = Path(__file__).resolve().parents[3] / "docs/operations.md"
TEXT = "Hello world. " * 7


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Reads the session lines; other tests may have sent them elsewhere."""
    monkeypatch.setattr(LOGGER, "propagate", True)
    caplog.set_level(logging.INFO, LOGGER.name)
    return lambda: [json.loads(record.getMessage()) for record in caplog.records if record.name == LOGGER.name]


def test_a_session_is_recorded_as_it_was_heard(house: House, lines: Any) -> None:
    sender = house.send(start_request(TEXT))
    assert_whole(sender, TEXT)
    house.wait_empty()
    now, audio_s = house.recorder, len(sender.waveform) / SAMPLE_RATE
    assert (sample(now, "session_starts_total"), nonzero(now, "sessions_ended_total", "reason")) == (1, {"eos": 1})
    assert sample(now, "audio_seconds_total") == pytest.approx(audio_s)
    assert sample(now, "audio_duration_s_sum") == pytest.approx(audio_s)
    assert (sample(now, "audio_ttfp_s_count", text="whole"), sample(now, "audio_ttfp_s_count", text="pieces")) == (1, 0)
    assert sample(now, "audio_chunk_gap_s_count") == len(sender.chunks) - 1
    assert sample(now, "audio_rtf_count", text="whole") == 1 and sample(now, "text_characters_total") == len(TEXT)
    assert sum(nonzero(now, "sessions", "state").values()) == 0
    (line,) = lines()
    assert (line["event"], line["reason"], line["characters"], line["tokens"]) == ("session_end", "eos", len(TEXT), tokens_of(TEXT))
    assert line["audio_s"] == pytest.approx(audio_s, abs=1e-3) and set(line["stages_ms"]) == set(OUTER_STAGES)
    assert TEXT not in json.dumps(line)
    example = re.findall(r'^\{"event".*\}$', OPERATIONS.read_text(encoding="utf-8"), re.MULTILINE)
    assert [list(json.loads(one)) for one in example] == [list(line)], "the example in the documents"


def test_gaps_of_the_listener_are_recorded(house: House, lines: Any) -> None:
    """The listener runs dry, because the text pauses for longer than what was sent lasts."""
    sender = house.send(start_request("Hello world. ", is_end=False))
    sender.wait_chunks(1)
    house.clock.now += 30.0
    assert house.send(append_request(TEXT[:80], is_end=True)).endings == [None]
    assert sender.wait() is None
    house.wait_empty()
    now = house.recorder
    assert sample(now, "audio_underrun_s_sum") > 20.0 and nonzero(now, "audio_continuity_ok_total", "threshold_ms") == {}
    (line,) = lines()
    assert line["gaps"] == 1 and line["gap_s"] == pytest.approx(sample(now, "audio_underrun_s_sum"), abs=1e-3)


@pytest.mark.parametrize("by", ["request", "disconnect"])
def test_cancels_are_counted_by_their_origin(house: House, lines: Any, by: str) -> None:
    sender = house.send(start_request(TEXT, is_end=False))
    sender.wait_chunks(1)
    if by == "request":
        house.send(cancel_request())
    else:
        sender.gone = True
        house.orchestrator.watch()
    house.wait_empty()
    reason = {"request": "cancelled", "disconnect": "disconnected"}[by]
    now = house.recorder
    assert nonzero(now, "sessions_ended_total", "reason") == {reason: 1} and nonzero(now, "session_cancels_total", "by") == {by: 1}
    assert lines()[0]["reason"] == reason


def test_refusals_are_counted_by_code_and_start_nothing(house: House, lines: Any) -> None:
    house.refused(append_request("more"))
    house.refused(start_request(""))
    for number in range(4):
        house.send(start_request("Wait", session_id=f"s{number}", is_end=False))
    full = house.refused(start_request("No room.", session_id="s4"))
    assert isinstance(full, BusyError) and full.retry_after_s is not None
    now = house.recorder
    assert nonzero(now, "requests_refused_total", "code") == {"UNKNOWN_SESSION": 1, "INVALID_INPUT": 1, "BUSY": 1}
    assert sample(now, "session_starts_total") == 4 == sum(nonzero(now, "sessions", "state").values()) and lines() == []


@given(st.lists(st.floats(0.0, 1000.0), min_size=5, max_size=5).map(sorted))
def test_stages_add_up_to_the_first_audio(times: list[float]) -> None:
    marks = Timestamps(*times)
    assert sum(marks.stages().values()) == pytest.approx(times[-1] - times[0], abs=1e-9)
    assert tuple(marks.stages()) == OUTER_STAGES and min(marks.stages().values()) >= 0.0
    for missing in ("voice_ready_at", "hop_sent_at", "hop_done_at", "first_audio_at"):
        marks = Timestamps(*times)
        setattr(marks, missing, None)
        assert marks.stages() == {}


def test_a_session_frees_its_place_even_if_its_end_cannot_be_recorded(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("a bug of the metrics")

    monkeypatch.setattr(SessionRecord, "ended", fail)
    assert_whole(house.send(start_request(TEXT)), TEXT)
    house.wait_empty()
