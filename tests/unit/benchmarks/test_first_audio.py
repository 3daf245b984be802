"""The arithmetic of ``benchmarks/first_audio.py``: pages read back, differences, quantiles, stages, random starts."""

from __future__ import annotations

import random
from statistics import mean as average

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import generate_latest

from benchmarks._callers import poisson_starts
from benchmarks._client_processes import ProcessLoad, default_processes
from benchmarks._scrape import Between, Snapshot, mean, parse, quantile
from benchmarks.first_audio import BETWEEN, INNER, budget
from bistream.metrics.families import AUDIO_STAGE, AUDIO_TTFP, HOPS, SESSION_STARTS, STAGES
from bistream.metrics.recorder import Recorder

SETTINGS = settings(max_examples=40, deadline=None)
SECONDS = st.lists(st.floats(0.001, 20.0), min_size=1, max_size=30)


def recorded(values: list[float]) -> Recorder:
    recorder = Recorder()
    for value in values:
        recorder.histogram(AUDIO_TTFP, "pieces").observe(value)
    recorder.counter(SESSION_STARTS).inc(len(values))
    recorder.counter(HOPS, "later").inc(3)
    return recorder


def scraped(recorder: Recorder) -> Snapshot:
    return parse(generate_latest(recorder.registry).decode())


@SETTINGS
@given(SECONDS)
def test_a_page_is_read_back(values: list[float]) -> None:
    """Other programs' metrics on the same page do not disturb."""
    page = generate_latest(recorded(values).registry).decode()
    found = parse("nv_energy_consumption 3\n" + page + 'nv_pending{model="x"} 1\n')
    assert found == parse(page)
    assert (found.values["bistream_session_starts_total", ()], found.values["bistream_hops_total", ("later",)]) == (len(values), 3)
    buckets = found.buckets["bistream_audio_ttfp_s", ("pieces",)]
    assert buckets.count == len(values)
    assert buckets.total == pytest.approx(sum(values))
    assert buckets.counts[0] == sum(value <= AUDIO_TTFP.buckets[0] for value in values)


@SETTINGS
@given(SECONDS, st.floats(0.0, 1.0))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(values: list[float], share: float) -> None:
    bounds = AUDIO_TTFP.buckets
    buckets = scraped(recorded(values)).buckets["bistream_audio_ttfp_s", ("pieces",)]
    assert mean(buckets) == pytest.approx(average(values))
    found = quantile(bounds, buckets, share)
    rank = max(1, -(-int(share * len(values) * 1000) // 1000))
    near = [sorted(values)[min(len(values), max(1, rank + step)) - 1] for step in (-1, 0, 1)]
    lower = max((bound for bound in bounds if bound < min(near)), default=0.0)
    upper = min(bound for bound in bounds if bound >= max(near))
    assert lower <= found <= upper


def test_without_observations_there_is_no_time() -> None:
    buckets = scraped(Recorder())
    recorder = Recorder()
    recorder.histogram(AUDIO_TTFP, "whole")
    empty = scraped(recorder).buckets["bistream_audio_ttfp_s", ("whole",)]
    assert (mean(empty), quantile(AUDIO_TTFP.buckets, empty, 0.5), len(buckets.buckets)) == (0.0, 0.0, 0)


@SETTINGS
@given(st.fixed_dictionaries({stage: st.floats(0.0, 1.0) for stage in STAGES}))
def test_the_budget_adds_up(seconds: dict[str, float]) -> None:
    recorder = Recorder()
    recorder.histogram(AUDIO_STAGE, "voice").observe(9.0)  # before the first scrape
    before = scraped(recorder)
    for stage, value in seconds.items():
        recorder.histogram(AUDIO_STAGE, stage).observe(value)
    stages = budget(Between(before, scraped(recorder)))
    assert stages["voice"]["mean"] == pytest.approx(1000 * seconds["voice"], abs=0.01)
    for outer, inner in INNER.items():
        parts = [stages[f"{outer}.{name}"]["mean"] for name in (*inner, BETWEEN)]
        assert sum(parts) == pytest.approx(stages[outer]["mean"], abs=0.02)


def test_starts_are_as_many_as_asked_for_and_reproducible() -> None:
    starts = poisson_starts(50.0, 100.0, random.Random(1))
    assert starts == sorted(starts) == poisson_starts(50.0, 100.0, random.Random(1)) and starts[-1] < 100.0
    assert abs(len(starts) - 5000) < 5 * 5000**0.5, "five standard deviations"
    assert len(poisson_starts(0.001, 1.0, random.Random(1))) == 1


def test_a_busy_client_is_reported() -> None:
    assert ProcessLoad(1.0, 0.5, 0.0).warning() is None
    assert "90%" in (ProcessLoad(1.0, 0.9, 0.0).warning() or "")
    assert default_processes(1) == 1 and default_processes(10_000) >= 1
