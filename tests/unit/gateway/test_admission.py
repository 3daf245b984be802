"""Who may do how much, with a clock that the test moves."""

from __future__ import annotations

import pytest

from bistream.errors import BusyError
from gateway.admission import Admission, Caller, host_of
from gateway.settings import GateLimits
from tests.unit.gateway.fakes import Clock

HOME = Caller("10.0.0.1")


def test_sessions_of_an_address_are_bounded_and_those_of_another_are_not_touched() -> None:
    admission = Admission(GateLimits(sessions_per_address=2))
    admission.open_session(HOME)
    admission.open_session(HOME)
    with pytest.raises(BusyError, match="address has 2 sessions"):
        admission.open_session(HOME)
    admission.open_session(Caller("10.0.0.2"))
    admission.close_session(HOME)
    admission.open_session(HOME)
    assert admission.sessions == 3


def test_sessions_of_a_key_are_bounded_over_all_addresses() -> None:
    admission = Admission(GateLimits(sessions_per_key=2, sessions_per_address=0))
    admission.open_session(Caller("10.0.0.1", "anna"))
    admission.open_session(Caller("10.0.0.2", "anna"))
    with pytest.raises(BusyError, match="API key"):
        admission.open_session(Caller("10.0.0.3", "anna"))
    admission.open_session(Caller("10.0.0.3", "bert"))


def test_all_sessions_are_bounded() -> None:
    admission = Admission(GateLimits(max_sessions=1))
    admission.open_session(HOME)
    with pytest.raises(BusyError, match="gate"):
        admission.open_session(Caller("10.0.0.2"))


def test_starts_per_second_refill() -> None:
    clock = Clock()
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
    clock = Clock()
    admission = Admission(GateLimits(starts_per_second=1, start_burst=1), clock)
    admission.open_session(Caller("10.0.0.1", "anna"))
    with pytest.raises(BusyError):
        admission.open_session(Caller("10.0.0.2", "anna"))
    admission.open_session(Caller("10.0.0.2", "bert"))


def test_streams_of_the_gate_are_bounded() -> None:
    admission = Admission(GateLimits(max_streams=2))
    for number in range(2):
        admission.open_call(Caller(f"10.0.0.{number}"))
    with pytest.raises(BusyError, match="All streams"):
        admission.open_call(HOME)


def test_streams_of_an_address_are_bounded() -> None:
    admission = Admission(GateLimits(streams_per_address=1))
    admission.open_call(HOME)
    with pytest.raises(BusyError, match="streams"):
        admission.open_call(HOME)
    admission.close_call(HOME)
    admission.open_call(HOME)
    assert admission.calls == 1


def test_calls_of_a_key_do_not_count_for_the_address_that_it_shares_with_strangers() -> None:
    admission = Admission(GateLimits(streams_per_address=1))
    admission.open_call(HOME)
    admission.open_call(Caller(HOME.address, "anna"))
    with pytest.raises(BusyError, match="API key"):
        admission.open_call(Caller("10.0.0.9", "anna"))


def test_addresses_that_are_quiet_again_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.admission.MAX_BUCKETS", 10)
    clock = Clock()
    admission = Admission(GateLimits(starts_per_second=1, start_burst=1), clock)
    for number in range(100):
        admission.open_session(Caller(f"10.0.0.{number}"))
        admission.close_session(Caller(f"10.0.0.{number}"))
        clock.now += 1
    assert len(admission._buckets) <= 11 and not admission._sessions


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
