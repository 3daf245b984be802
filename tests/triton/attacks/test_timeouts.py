"""Sessions that get nothing: each ends with ``SESSION_TIMEOUT`` after the limit, and what it held is free."""

from __future__ import annotations

import itertools
import time
import uuid
from typing import Any

import pytest

from tests.triton.attacks.conftest import PLACES, SHORT_S
from tests.triton.attacks.gauges import wait_free
from tests.triton.attacks.sizes import Sizes
from tests.triton.callers import Caller
from tests.triton.processes import described, named, replaced
from tests.triton.reliability import Attack
from tests.triton.requests import Stream
from tests.triton.served import Served, end
from tests.triton.test_sessions import MODEL

MUST = (
    f"`SESSION_TIMEOUT` once, not before {SHORT_S:g} s; afterwards no session, sequence or KV block is held and all places are taken again"
)

DOORS = ("the gate", pytest.param("Triton", marks=pytest.mark.slow))
PAUSE_S = 0.05  # between two pieces
SAID = 50  # pieces that say nothing; then empty ones, so that the text stays below its limit however fast they are answered


def address(served: Served, door: str) -> str:
    return served.keeper.addresses()["triton"] if door == "Triton" else served.keeper.grpc_url


def full_house(url: str, voice: dict[str, Any]) -> list[str]:
    """The outcomes of as many sessions as there are places, none of which ends before all have begun."""
    callers = [Caller(url, voice, "Yes. ") for _ in range(PLACES)]
    for caller in callers:
        caller.say("Oh.")
    return end(callers)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.attack(
    "sessions that get no more text, at {door}: all places, those that have spoken and those that were never told a word", must=MUST
)
def test_a_session_that_gets_nothing_ends(hostile: Served, voice: dict[str, Any], sizes: Sizes, attack: Attack, door: str) -> None:
    before = named(hostile.keeper.pid)
    for _ in range(sizes.rounds):
        texts = ["The first words are spoken. ", ""] * (PLACES // 2)
        began = time.monotonic()
        callers = [Caller(address(hostile, door), voice, text) for text in texts]
        attack.got(end(callers))
        assert all(caller.codes == ["SESSION_TIMEOUT"] and caller.ended_at - began > SHORT_S for caller in callers)
        assert all(caller.samples > 0 for caller, text in zip(callers, texts, strict=True) if text)
        wait_free(hostile)
    assert full_house(address(hostile, door), voice) == ["audio"] * PLACES
    wait_free(hostile)
    attack.processes = described(before, named(hostile.keeper.pid))
    assert replaced(before, named(hostile.keeper.pid)) == []


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.attack("sessions kept with empty pieces and punctuation, at {door}", must=MUST)
def test_a_session_that_gets_nothing_to_say_ends(hostile: Served, voice: dict[str, Any], sizes: Sizes, attack: Attack, door: str) -> None:
    before = named(hostile.keeper.pid)
    for number in range(sizes.rounds):
        session_id = uuid.uuid4().hex
        with Stream(address(hostile, door)) as stream:
            start = stream.send(MODEL, session_id=session_id, target_text="", is_end=False, **voice)
            pieces = itertools.chain(itertools.repeat(("", " ", "...")[number % 3], SAID), itertools.repeat(""))
            while start.error is None:
                piece = next(pieces)
                stream.send(MODEL, session_id=session_id, target_text=piece, is_start=False, is_end=False)
                stream.receive_one(start)
                stream.stays_silent(PAUSE_S)
            attack.got([str(start.code)])
        assert start.code == "SESSION_TIMEOUT"
        wait_free(hostile)
    attack.processes = described(before, named(hostile.keeper.pid))
