"""The place of a session that is cancelled is free at once, whatever the session was doing."""

from __future__ import annotations

import threading

import pytest

from bistream.errors import BusyError, CancelledError, ShuttingDownError
from tests.unit.sessions.fakes import WAIT_S, append_request, cancel_request, start_request
from tests.unit.sessions.house import House, assert_whole, house_with


@house_with(max_sessions=1)
@pytest.mark.parametrize("ending", ["cancel", "gone", "drain"])
def test_the_place_does_not_wait_for_the_analysis_of_a_recording(house: House, ending: str) -> None:
    """The analysis goes on without the session; its result still goes to the cache of voices."""
    gate = house.models.voice.gate = threading.Event()
    sender = house.send(start_request(is_end=False))
    assert house.models.voice.called.wait(WAIT_S)
    assert isinstance(house.refused(start_request(session_id="other")), BusyError)
    if ending == "cancel":
        house.send(cancel_request())
    elif ending == "gone":
        sender.gone = True
        house.orchestrator.watch()
    else:
        house.orchestrator.drain(0.0)
    assert isinstance(sender.wait(), ShuttingDownError if ending == "drain" else CancelledError)
    house.wait_empty()
    gate.set()
    if ending != "drain":
        assert_whole(house.send(start_request("Hello again.", session_id="other")), "Hello again.")
        assert len(house.models.language_model.starts) == 1, "the cancelled session never reached the language model"
    assert house.models.voice.calls == 1


@house_with(max_text_chars=1000)
def test_many_pieces_cost_what_their_text_costs(house: House) -> None:
    """Pieces that arrive while one is delivered leave together, and empty ones not at all."""
    model = house.models.language_model
    model.holds_start = threading.Event()
    sender = house.send(start_request("", is_end=False))
    assert model.start_sent.wait(WAIT_S)
    text = "word " * 10
    for character in text:
        assert house.send(append_request(character)).endings == [None]
    for _ in range(50):
        assert house.send(append_request("")).endings == [None]
    assert len(house.run().session.outbox) == len(text)
    model.holds_start.set()
    assert model.start_arrived.wait(WAIT_S)
    house.send(append_request("end.", is_end=True))
    assert_whole(sender, text + "end.")
    assert b"".join(piece for piece, _ in model.appends).decode() == text + "end."
    assert model.counts["refusals"] == 0, "text waits for its start"
    assert model.counts["appends"] <= 3, "one delivery, and what came during it"
