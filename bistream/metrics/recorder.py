"""Counts what a process does: plain numbers under one lock, cheap enough for every step and every chunk.

A stage asks once for its counters and histograms and then calls ``add`` or ``observe``, from any thread; a gauge is a function that is
read with every snapshot. Nothing leaves the process here: ``exporter.py`` writes the snapshots.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping

from bistream.metrics.families import BY_NAME, Family, Kind, Labels
from bistream.metrics.snapshot import Buckets, Snapshot

logger = logging.getLogger(__name__)


class Counter:
    """Made by ``Recorder.counter``."""

    __slots__ = ("_lock", "value")

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self.value = 0.0

    def add(self, amount: float = 1.0) -> None:
        with self._lock:
            self.value += amount


class Histogram:
    """Made by ``Recorder.histogram``. counts: observations in each bucket, the last one above all bounds; not cumulative."""

    __slots__ = ("_bounds", "_lock", "counts", "total")

    def __init__(self, lock: threading.Lock, bounds: tuple[float, ...]) -> None:
        self._lock = lock
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        index = bisect_left(self._bounds, value)  # a bound belongs to its bucket
        with self._lock:
            self.counts[index] += 1
            self.total += value


class Recorder:
    """Everything one process records. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: dict[tuple[Family, Labels], Counter] = {}
        self._histograms: dict[tuple[Family, Labels], Histogram] = {}
        self._readings: list[tuple[Family, Callable[[], Mapping[Labels, float]]]] = []

    def counter(self, family: Family, *labels: str) -> Counter:
        """The counter with these label values; all known ones of the family exist from the first call on."""
        _check(family, labels, Kind.COUNTER)
        with self._lock:
            for known in {*family.known_labels, labels}:
                self._counters.setdefault((family, known), Counter(self._lock))
            return self._counters[family, labels]

    def histogram(self, family: Family, *labels: str) -> Histogram:
        """As ``counter``."""
        _check(family, labels, Kind.HISTOGRAM)
        with self._lock:
            for known in {*family.known_labels, labels}:
                self._histograms.setdefault((family, known), Histogram(self._lock, family.buckets))
            return self._histograms[family, labels]

    def read(self, family: Family, values: Callable[[], Mapping[Labels, float]]) -> None:
        """Call ``values`` with every snapshot: a gauge, or a counter that something else counts. Known labels that it omits are 0."""
        assert BY_NAME.get(family.name) is family and family.kind is not Kind.HISTOGRAM
        self._readings.append((family, values))

    def snapshot(self) -> Snapshot:
        snapshot = Snapshot()
        with self._lock:
            for (family, labels), counter in self._counters.items():
                snapshot.values[family.name, labels] = counter.value
            for (family, labels), histogram in self._histograms.items():
                snapshot.buckets[family.name, labels] = Buckets(tuple(histogram.counts), histogram.total)
        for family, read in self._readings:
            try:
                values = read()
            except Exception:
                logger.exception("%s could not be read", family.name)
                continue
            for labels in {*family.known_labels, *values}:
                snapshot.values[family.name, labels] = values.get(labels, 0.0)
        return snapshot


def _check(family: Family, labels: Labels, kind: Kind) -> None:
    assert BY_NAME.get(family.name) is family, f"add {family.name} to families.py"
    assert family.kind is kind and len(labels) == len(family.labels)
    for value, (name, known) in zip(labels, family.labels.items(), strict=True):
        assert not known or value in known, f"{family.name}: {value!r} is no value of {name}"
