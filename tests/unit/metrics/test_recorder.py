"""Prometheus reads all recorded values, from any thread and through any handle."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from bistream.metrics.catalogue import (
    ALL,
    AUDIO_STAGE,
    AUDIO_TTFP,
    PROCESS_CPU,
    SESSION_STARTS,
    SESSIONS,
    STAGES,
    THREADS,
    MetricFamily,
    MetricType,
)
from bistream.metrics.recorder import Recorder
from tests.recorded import sample


def parsed(recorder: Recorder) -> Mapping[str, Metric]:
    recorder.refresh()
    return {family.name: family for family in text_string_to_metric_families(generate_latest(recorder.registry).decode())}


@settings(max_examples=8)
@given(st.lists(st.floats(0.0, 100.0), max_size=20))
def test_a_histogram_holds_every_value_in_the_buckets_that_bound_it(values: list[float]) -> None:
    recorder = Recorder()
    for value in values:
        recorder.histogram(AUDIO_TTFP, "whole").observe(value)
    counts = [0 if not values else sample(recorder, "audio_ttfp_s_bucket", text="whole", le=repr(bound)) for bound in AUDIO_TTFP.buckets]
    assert counts == [sum(value <= bound for value in values) for bound in AUDIO_TTFP.buckets]


def test_series_with_known_labels_exist_before_their_first_event() -> None:
    """Otherwise a rate would miss the first one."""
    recorder = Recorder()
    recorder.histogram(AUDIO_STAGE, "voice")
    recorder.read(SESSIONS, lambda: {("speaking",): 2.0})
    assert all(sample(recorder, "audio_stage_s_count", stage=stage) == 0 for stage in STAGES)
    assert (sample(recorder, "sessions", state="speaking"), sample(recorder, "sessions", state="closed")) == (2, 0)


def test_a_counter_that_something_else_counts_grows_with_it() -> None:
    recorder, seconds = Recorder(), [1.0]
    recorder.read(PROCESS_CPU, lambda: {("model",): seconds[0]})
    assert sample(recorder, "process_cpu_seconds_total", model="model") == 1.0
    seconds[0] = 2.5
    assert sample(recorder, "process_cpu_seconds_total", model="model") == 2.5


def test_a_reading_that_fails_leaves_the_others() -> None:
    recorder = Recorder()

    def fail() -> dict[tuple[str, ...], float]:
        raise RuntimeError("no longer there")

    recorder.read(SESSIONS, fail)
    recorder.read(THREADS, lambda: {("model",): 1.0})
    assert sample(recorder, "threads", model="model") == 1.0 and "bistream_sessions" not in parsed(recorder)


def test_every_kind_is_parsed_as_what_it_is() -> None:
    recorder = Recorder()
    for family in ALL:
        make(recorder, family)
    found = parsed(recorder)
    for family in ALL:
        name = family.name.removesuffix("_total") if family.kind is MetricType.COUNTER else family.name
        assert found[name].type == family.kind.value and found[name].documentation == family.help


def make(recorder: Recorder, family: MetricFamily) -> None:
    labels = family.known_labels[0] if family.known_labels else ("model",) * len(family.labels)
    if family.kind is MetricType.HISTOGRAM:
        recorder.histogram(family, *labels)
    elif family.kind is MetricType.COUNTER:
        recorder.counter(family, *labels)
    else:
        recorder.read(family, lambda: {labels: 1.0})


def test_unknown_families_and_labels_are_refused() -> None:
    recorder = Recorder()
    with pytest.raises(AssertionError, match="is no value of text"):
        recorder.histogram(AUDIO_TTFP, "a sentence of a caller")
    with pytest.raises(AssertionError, match=r"catalogue\.py"):
        recorder.counter(MetricFamily("bistream_new_total", MetricType.COUNTER, "New"))


def test_no_count_is_lost_between_threads() -> None:
    recorder = Recorder()

    def count() -> None:
        for _ in range(500):
            recorder.counter(SESSION_STARTS).inc()
            recorder.histogram(AUDIO_TTFP, "whole").observe(0.5)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sample(recorder, "session_starts_total") == sample(recorder, "audio_ttfp_s_count", text="whole") == 2000
