"""Numbers survive the file and the sum, and what is exposed is what Prometheus reads."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from bistream.metrics.families import ALL, AUDIO_STAGE, AUDIO_TTFP, SESSION_STARTS, SESSIONS, STAGES, THREADS, Family, Kind
from bistream.metrics.recorder import Recorder
from bistream.metrics.snapshot import add_up, exposition, from_json, to_json

SETTINGS = settings(max_examples=20, deadline=None)
VALUES = st.lists(st.floats(0.0, 100.0), max_size=20)


def parsed(text: str) -> Mapping[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def sample(exposed: str, name: str, **labels: str) -> float:
    found = [one.value for family in parsed(exposed).values() for one in family.samples if one.name == name and one.labels == labels]
    assert len(found) == 1, (name, labels)
    return float(found[0])


def recorded(values: list[float], events: int = 0) -> Recorder:
    recorder = Recorder()
    histogram = recorder.histogram(AUDIO_TTFP, "whole")
    for value in values:
        histogram.observe(value)
    recorder.counter(SESSION_STARTS).add(events)
    return recorder


@SETTINGS
@given(VALUES)
def test_a_histogram_holds_every_value_in_the_buckets_that_bound_it(values: list[float]) -> None:
    text = exposition(recorded(values).snapshot())
    for bound in AUDIO_TTFP.buckets:
        name = str(int(bound)) if bound == int(bound) else repr(bound)
        assert sample(text, "bistream_audio_ttfp_s_bucket", text="whole", le=name) == sum(value <= bound for value in values)
    assert sample(text, "bistream_audio_ttfp_s_bucket", text="whole", le="+Inf") == len(values)
    assert sample(text, "bistream_audio_ttfp_s_count", text="whole") == len(values)
    assert sample(text, "bistream_audio_ttfp_s_sum", text="whole") == pytest.approx(sum(values))


@SETTINGS
@given(VALUES, st.integers(0, 9))
def test_a_snapshot_survives_the_file(values: list[float], events: int) -> None:
    snapshot = recorded(values, events).snapshot()
    assert from_json(to_json(snapshot)) == snapshot


@SETTINGS
@given(VALUES, VALUES)
def test_the_sum_of_two_processes_is_what_one_would_have_recorded(one: list[float], other: list[float]) -> None:
    both = add_up([recorded(one, 2).snapshot(), recorded(other, 3).snapshot()])
    alone = recorded(one + other, 5).snapshot()
    assert both.values == alone.values
    series = ("bistream_audio_ttfp_s", ("whole",))
    assert both.buckets[series].counts == alone.buckets[series].counts
    assert both.buckets[series].total == pytest.approx(alone.buckets[series].total)


def test_the_difference_of_two_moments_is_what_came_between() -> None:
    recorder = recorded([0.1, 7.0])
    series = ("bistream_audio_ttfp_s", ("whole",))
    before = recorder.snapshot().buckets[series]
    recorder.histogram(AUDIO_TTFP, "whole").observe(0.5)
    between = recorder.snapshot().buckets[series] - before
    assert between.count == 1 and between.total == pytest.approx(0.5)
    assert between.counts[AUDIO_TTFP.buckets.index(0.5)] == 1


def test_series_with_known_labels_exist_before_their_first_event() -> None:
    """Otherwise a rate would miss the first one."""
    recorder = Recorder()
    recorder.histogram(AUDIO_STAGE, "voice")
    recorder.read(SESSIONS, lambda: {("speaking",): 2.0})
    text = exposition(recorder.snapshot())
    assert all(sample(text, "bistream_audio_stage_s_count", stage=stage) == 0 for stage in STAGES)
    assert sample(text, "bistream_sessions", state="speaking") == 2
    assert sample(text, "bistream_sessions", state="closed") == 0


def test_only_gauges_vanish_with_their_process() -> None:
    recorder = recorded([0.1], events=1)
    recorder.read(THREADS, lambda: {("model",): 7.0})
    assert ("bistream_threads", ("model",)) in recorder.snapshot().values
    left = recorder.snapshot().without_gauges()
    assert left.buckets == recorder.snapshot().buckets and list(left.values) == [("bistream_session_starts_total", ())]


def test_a_reading_that_fails_leaves_the_others() -> None:
    recorder = recorded([])

    def fail() -> dict[tuple[str, ...], float]:
        raise RuntimeError("no longer there")

    recorder.read(SESSIONS, fail)
    recorder.read(THREADS, lambda: {("model",): 1.0})
    values = recorder.snapshot().values
    assert ("bistream_threads", ("model",)) in values and all(name != "bistream_sessions" for name, _ in values)


def test_every_kind_is_parsed_as_what_it_is() -> None:
    recorder = Recorder()
    for family in ALL:
        make(recorder, family)
    found = parsed(exposition(recorder.snapshot()))
    for family in ALL:
        name = family.name.removesuffix("_total") if family.kind is Kind.COUNTER else family.name
        assert found[name].type == family.kind.value and found[name].documentation == family.help


def make(recorder: Recorder, family: Family) -> None:
    labels = family.known_labels[0] if family.known_labels else ("model",) * len(family.labels)
    if family.kind is Kind.HISTOGRAM:
        recorder.histogram(family, *labels)
    elif family.kind is Kind.COUNTER:
        recorder.counter(family, *labels)
    else:
        recorder.read(family, lambda: {labels: 1.0})


def test_unknown_families_and_labels_are_refused() -> None:
    recorder = Recorder()
    with pytest.raises(AssertionError, match="is no value of text"):
        recorder.histogram(AUDIO_TTFP, "a sentence of a caller")
    with pytest.raises(AssertionError, match="families.py"):
        recorder.counter(Family("bistream_new_total", Kind.COUNTER, SESSION_STARTS.source, "New"))


def test_no_count_is_lost_between_threads() -> None:
    recorder = Recorder()
    counter, histogram = recorder.counter(SESSION_STARTS), recorder.histogram(AUDIO_TTFP, "whole")

    def count() -> None:
        for _ in range(2000):
            counter.add()
            histogram.observe(0.5)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (counter.value, sum(histogram.counts)) == (8000, 8000)
