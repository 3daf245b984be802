"""The arithmetic of ``benchmarks/first_audio.py``: pages read back, differences, quantiles, stages, random starts."""

from __future__ import annotations

from statistics import mean as average

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import generate_latest

from benchmarks._scrape import Between, Snapshot, mean, parse, quantile
from benchmarks.first_audio import BETWEEN, INNER, budget
from bistream.metrics.catalogue import AUDIO_STAGE, AUDIO_TTFP, HOPS, SESSION_STARTS, STAGES
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
