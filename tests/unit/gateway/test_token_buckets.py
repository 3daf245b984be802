"""Token buckets: no more than the burst and the rate allow, each holder for itself, in bounded memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.token_buckets import TokenBuckets
from tests.clock import ManualClock


@given(
    rate=st.floats(0.1, 20.0),
    burst=st.integers(1, 10),
    pauses=st.lists(st.floats(0.0, 3.0), max_size=60),
)
def test_starts_stay_within_the_burst_and_the_rate(rate: float, burst: int, pauses: list[float]) -> None:
    clock = ManualClock()
    buckets = TokenBuckets(rate, burst, clock)
    taken = 0
    for pause in pauses:
        clock.now += pause
        if buckets.lowest(["anna"]) >= 1.0:
            buckets.take(["anna"])
            taken += 1
    assert taken <= burst + rate * sum(pauses) + 1e-6
    assert buckets.lowest(["berta"]) == burst, "of somebody else"


def test_a_refused_start_can_cost_as_well_down_to_the_least() -> None:
    buckets = TokenBuckets(1.0, 2.0, ManualClock())
    for _ in range(10):
        buckets.take(["anna", "10.0.0.1"], least=-3.0)
    assert buckets.lowest(["10.0.0.1"]) == -3.0


def test_holders_that_are_quiet_again_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.token_buckets.MAX_BUCKETS", 10)
    clock = ManualClock()
    buckets = TokenBuckets(1.0, 1.0, clock)
    for number in range(100):
        buckets.take([f"10.0.0.{number}"])
        clock.now += 1.0
    assert len(buckets) <= 11
