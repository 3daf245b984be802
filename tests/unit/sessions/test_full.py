"""A server whose capacity is taken refuses a start at once, before anything is computed, and says when to come again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from bistream.contract.refusals import format_error, parse_error
from bistream.errors import BusyError
from bistream.token2wav.load_report import LoadReport
from tests.recorded import sample
from tests.unit.sessions.fakes import WAIT_S, FakeSender, start_request
from tests.unit.sessions.house import CONFIG, House, assert_whole


@pytest.fixture
def house() -> Iterator[House]:
    house = House(replace(CONFIG, admission_load=0.9))
    yield house
    house.orchestrator.close()


def speak(house: House) -> FakeSender:
    """A session whose first hop is being computed, on a server that can serve one."""
    house.models.token2wav.load = LoadReport(capacity=1.5)
    house.models.token2wav.gates[0] = threading.Event()
    house.models.token2wav.reached[0] = threading.Event()
    sender = house.send(start_request())
    assert house.models.token2wav.reached[0].wait(WAIT_S)
    return sender


def test_a_start_beyond_the_capacity_is_refused_before_anything_is_computed(house: House) -> None:
    speaking = speak(house)
    error = house.refused(start_request(session_id="other"))
    assert isinstance(error, BusyError) and error.retry_after_s is not None and error.retry_after_s > 0
    read = parse_error(format_error(error))
    assert isinstance(read, BusyError) and (read.retry_after_s, read.session_id) == (error.retry_after_s, "other")
    assert len(house.models.language_model.starts) == house.models.voice.calls == 1
    assert sample(house.recorder, "load") == 2.5 / 1.5 and sample(house.recorder, "requests_refused_total", code="BUSY") == 1
    house.models.token2wav.gates[0].set()
    assert_whole(speaking, "Hello world.")
    house.wait_empty()
    house.clock.now += 1.0
    assert_whole(house.send(start_request(session_id="other")), "Hello world.")
    house.wait_empty()


def test_all_places_taken_says_when_to_come_again(house: House) -> None:
    senders = [house.send(start_request(session_id=str(index), is_end=False)) for index in range(4)]
    error = house.refused(start_request(session_id="other"))
    assert isinstance(error, BusyError) and error.retry_after_s is not None
    house.orchestrator.drain(0.0)
    assert all(sender.wait() is not None for sender in senders)
