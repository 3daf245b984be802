"""The capacity that is estimated from batches: right at full batches, never above what they showed, and within bounds before them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.token2wav.capacity import FULL_BATCHES, FULL_MEMORY_S, MIN_BATCHES, UNKNOWN, CapacityMeter

TARGET_S, MAX_HOPS = 0.15, 64


class Worker:
    """Computes batches of hops of one audio second each: ``fixed_s`` and ``marginal_s`` for each hop."""

    def __init__(self, fixed_s: float = 0.0105, marginal_s: float = 0.0011, capacity: float = UNKNOWN) -> None:
        self.meter = CapacityMeter(TARGET_S, MAX_HOPS, capacity)
        self.now_s = 0.0
        self.fixed_s, self.marginal_s = fixed_s, marginal_s

    def batch(self, hops: int, leftover: bool = False, slowness: float = 1.0, pause_s: float = 0.05) -> float:
        """The pace of the batch."""
        self.now_s += pause_s
        began_s = self.now_s
        self.now_s += slowness * (self.fixed_s + self.marginal_s * hops)
        self.meter.observe(float(hops), hops, began_s, self.now_s, leftover)
        return hops / (self.now_s - began_s)


def test_nothing_is_known_at_first() -> None:
    worker = Worker()
    for _ in range(MIN_BATCHES - 1):
        worker.batch(3)
    assert worker.meter.audio_s_per_s == UNKNOWN
    worker.batch(3)
    assert worker.meter.audio_s_per_s > 0


def test_small_batches_of_different_sizes_tell_the_pace_of_large_ones() -> None:
    worker, chance = Worker(), random.Random(0)
    for _ in range(40):
        worker.batch(chance.randint(1, 8), slowness=chance.uniform(0.98, 1.02))
    at_target = (TARGET_S - worker.fixed_s) / worker.marginal_s / TARGET_S
    assert worker.meter.audio_s_per_s == pytest.approx(at_target, rel=0.15)


@given(st.floats(0.0, 0.5), st.floats(1e-4, 2.0), st.lists(st.integers(1, 64), min_size=MIN_BATCHES, max_size=80))
def test_without_full_batches_the_estimate_is_at_most_four_times_the_best_pace(fixed_s: float, marginal_s: float, sizes: list[int]) -> None:
    worker = Worker(fixed_s, marginal_s)
    paces = [worker.batch(size, pause_s=0.2) for size in sizes]
    assert 0.0 < worker.meter.audio_s_per_s <= 4.001 * max(paces)


@given(st.lists(st.floats(0.7, 1.4), min_size=FULL_BATCHES, max_size=60))
def test_full_batches_bound_the_estimate(slownesses: list[float]) -> None:
    worker = Worker()
    for _ in range(30):
        worker.batch(1)
    paces = [worker.batch(64, leftover=True, slowness=slowness, pause_s=0.0) for slowness in slownesses]
    assert min(paces) * 0.999 <= worker.meter.audio_s_per_s <= max(paces) * 1.001


def test_a_pace_that_halves_is_known_after_sixteen_full_batches() -> None:
    worker = Worker()
    for _ in range(40):
        worker.batch(64, leftover=True, pause_s=0.0)
    before = worker.meter.audio_s_per_s
    for _ in range(FULL_BATCHES):
        worker.batch(64, leftover=True, slowness=2.0, pause_s=0.0)
    assert worker.meter.audio_s_per_s == pytest.approx(before / 2, rel=0.05)


def test_a_quiet_time_keeps_what_full_batches_showed_for_a_while() -> None:
    worker = Worker()
    for _ in range(20):
        worker.batch(64, leftover=True, pause_s=0.0)
    full = worker.meter.audio_s_per_s
    worker.batch(1, pause_s=0.5 * FULL_MEMORY_S)
    assert worker.meter.audio_s_per_s >= full
    for _ in range(80):
        worker.batch(1, pause_s=1.0)
    assert worker.meter.audio_s_per_s < full


def test_a_given_capacity_is_reported_at_once_and_stays() -> None:
    worker = Worker(capacity=3.0)
    assert worker.meter.audio_s_per_s == 3.0
    for _ in range(30):
        worker.batch(64, leftover=True)
    assert worker.meter.audio_s_per_s == 3.0


def test_lease_renewals_say_nothing() -> None:
    meter = CapacityMeter(TARGET_S, MAX_HOPS)
    for index in range(30):
        meter.observe(0.0, 1, index, index + 0.5, False)
    assert meter.audio_s_per_s == UNKNOWN
