"""A server without room refuses a start at once, before anything is computed, and says when to come again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bistream.contract.refusals import format_error, parse_error
from bistream.errors import BusyError
from bistream.sessions.load import LEAST_RESERVED_S
from bistream.token2wav.load_report import LoadReport
from tests.recorded import sample
from tests.unit.sessions.fakes import WAIT_S, start_request
from tests.unit.sessions.house import CONFIG, House, assert_whole


@pytest.mark.parametrize(
    ("house", "report", "reason"),
    [
        (replace(CONFIG, admission_load=0.9), LoadReport(capacity=1.5), "at capacity"),
        (replace(CONFIG, admission_load=0.0), LoadReport(capacity=1.5, pages=13, reserve_pages=10), "flow state"),
    ],
    ids=["load", "flow state"],
    indirect=["house"],
)
def test_a_start_without_room_is_refused_before_anything_is_computed(house: House, report: LoadReport, reason: str) -> None:
    """Beside a session whose first hop is being computed."""
    token2wav = house.models.token2wav
    token2wav.load = report
    gate, reached = token2wav.hold()
    speaking = house.send(start_request())
    assert reached.wait(WAIT_S)
    error = house.refused(start_request("And another", session_id="other", is_end=False))
    assert isinstance(error, BusyError) and reason in error.sentence and error.retry_after_s is not None and error.retry_after_s > 0
    read = parse_error(format_error(error))
    assert isinstance(read, BusyError) and (read.retry_after_s, read.session_id) == (error.retry_after_s, "other")
    assert len(house.models.language_model.starts) == house.models.voice.calls == 1
    assert sample(house.recorder, "load") == 2.5 / 1.5 and sample(house.recorder, "requests_refused_total", code="BUSY") == 1
    gate.set()
    assert_whole(speaking, "Hello world.")
    house.wait_empty()
    house.clock.now += 1.0
    assert_whole(house.send(start_request(session_id="other")), "Hello world.")
    assert [hop.expected_speech_s for hop in token2wav.hops if hop.prompt is not None] == [LEAST_RESERVED_S] * 2
