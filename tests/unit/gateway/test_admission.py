"""Who may do how much, with a clock that the test moves."""

from __future__ import annotations

import pytest

from bistream.errors import BusyError
from gateway.admission import Admission, Caller, host_of
from gateway.settings import GateLimits
from tests.clock import ManualClock

HOME = Caller("10.0.0.1")


AWAY = Caller("10.0.0.2")
ANNA, ANNA_AWAY, BERT = Caller(HOME.address, "anna"), Caller(AWAY.address, "anna"), Caller(HOME.address, "bert")


@pytest.mark.parametrize(
    ("limits", "one", "full", "words", "others"),
    [
        (GateLimits(sessions_per_address=1), HOME, HOME, "address has 1 sessions", [AWAY]),
        (GateLimits(sessions_per_key=1, sessions_per_address=0), ANNA, ANNA_AWAY, "API key has 1 sessions", [BERT, AWAY]),
        (GateLimits(max_sessions=1), HOME, AWAY, "All 1 sessions of the gate", []),
    ],
)
def test_sessions_are_bounded_and_those_of_others_are_not_touched(
    limits: GateLimits, one: Caller, full: Caller, words: str, others: list[Caller]
) -> None:
    admission = Admission(limits)
    admission.open_session(one)
    with pytest.raises(BusyError, match=words):
        admission.open_session(full)
    for other in others:
        admission.open_session(other)
    admission.close_session(one)
    admission.open_session(full)
    assert admission.sessions == 1 + len(others)


@pytest.mark.parametrize(
    ("limits", "one", "full", "words", "others"),
    [
        (GateLimits(streams_per_address=1), HOME, HOME, "address has 1 streams", [AWAY, ANNA]),  # which a key shares with strangers
        (GateLimits(streams_per_address=1), ANNA, ANNA_AWAY, "API key has 1 streams", [HOME]),
        (GateLimits(max_streams=1), HOME, AWAY, "All streams of the gate", []),
    ],
)
def test_calls_are_bounded_likewise(limits: GateLimits, one: Caller, full: Caller, words: str, others: list[Caller]) -> None:
    admission = Admission(limits)
    admission.open_call(one)
    with pytest.raises(BusyError, match=words):
        admission.open_call(full)
    for other in others:
        admission.open_call(other)
    admission.close_call(one)
    admission.open_call(full)
    assert admission.calls == 1 + len(others)


def test_starts_per_second_refill() -> None:
    clock = ManualClock()
    admission = Admission(GateLimits(starts_per_second=2, start_burst=3), clock)

    def starts() -> int:
        count = 0
        while True:
            try:
                admission.open_session(HOME)
            except BusyError:
                return count
            admission.close_session(HOME)
            count += 1

    assert starts() == 3
    assert starts() == 0
    clock.now += 1
    assert starts() == 2
    clock.now += 100
    assert starts() == 3  # never more than the burst


def test_a_refused_start_costs_the_other_holder_nothing() -> None:
    clock = ManualClock()
    admission = Admission(GateLimits(starts_per_second=1, start_burst=1), clock)
    admission.open_session(Caller("10.0.0.1", "anna"))
    with pytest.raises(BusyError):
        admission.open_session(Caller("10.0.0.2", "anna"))
    admission.open_session(Caller("10.0.0.2", "bert"))


@pytest.mark.parametrize(
    ("host", "counted"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::1", "::"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("2001:db8:1:2:ffff::", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("", "unknown"),
        ("unix", "unix"),
    ],
)
def test_addresses(host: str, counted: str) -> None:
    assert host_of(host) == counted
