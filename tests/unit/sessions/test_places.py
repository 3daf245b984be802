"""The place of a session that is cancelled is free at once, whatever the session was doing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from bistream.errors import BusyError, CancelledError, ShuttingDownError
from tests.unit.sessions.fakes import WAIT_S, FakeSender, append_request, cancel_request, start_request
from tests.unit.sessions.house import CONFIG, House, assert_whole

ONE_PLACE = replace(CONFIG, max_sessions=1, max_text_chars=1000, max_unread_audio_s=5.0)


@pytest.fixture
def small() -> Iterator[House]:
    house = House(ONE_PLACE)
    yield house
    house.orchestrator.close()
    assert house.orchestrator.open_sessions == 0
    assert house.models.held == 0


def analyse(house: House) -> FakeSender:
    """A session whose recording is being analysed, until the gate opens."""
    house.models.voice.gate = threading.Event()
    sender = house.send(start_request(is_end=False))
    assert house.models.voice.called.wait(WAIT_S)
    return sender


@pytest.mark.parametrize("ending", ["cancel", "gone", "drain"])
def test_the_place_does_not_wait_for_the_analysis_of_a_recording(small: House, ending: str) -> None:
    """The analysis goes on without the session; its result still goes to the cache of voices."""
    sender = analyse(small)
    assert isinstance(small.refused(start_request(session_id="other")), BusyError)
    if ending == "cancel":
        small.send(cancel_request())
    elif ending == "gone":
        sender.gone = True
        small.orchestrator.watch()
    else:
        small.orchestrator.drain(0.0)
    assert isinstance(sender.wait(), ShuttingDownError if ending == "drain" else CancelledError)
    small.wait_empty()
    assert small.models.voice.gate is not None
    small.models.voice.gate.set()
    if ending != "drain":
        assert_whole(small.send(start_request("Hello again.", session_id="other")), "Hello again.")
        assert len(small.models.language_model.starts) == 1, "the cancelled session never reached the language model"
    assert small.models.voice.calls == 1


def test_many_pieces_cost_what_their_text_costs() -> None:
    """Pieces that arrive while one is delivered leave together, and empty ones not at all."""
    house = House(replace(CONFIG, max_text_chars=20_000))
    model = house.models.language_model
    model.holds_start = threading.Event()
    sender = house.send(start_request("", is_end=False))
    assert model.start_sent.wait(WAIT_S)
    text = "word " * 300
    for character in text:
        assert house.send(append_request(character)).endings == [None]
    for _ in range(1000):
        assert house.send(append_request("")).endings == [None]
    assert len(house.run().session.outbox) == len(text)
    model.holds_start.set()
    assert model.start_arrived.wait(WAIT_S)
    house.send(append_request("end.", is_end=True))
    assert_whole_in_time(house, sender)
    assert b"".join(piece for piece, _ in model.appends).decode() == text + "end."
    assert model.counts["refusals"] == 0, "text waits for its start"
    assert model.counts["appends"] <= 3, "one delivery, and what came during it"
    house.orchestrator.close()


def assert_whole_in_time(house: House, sender: FakeSender) -> None:
    """Move the clock until everything has been heard."""
    while not sender.endings:
        house.wait_waiting(sender)
        house.clock.now += 10.0
        house.orchestrator.watch()
    assert sender.endings == [None]
