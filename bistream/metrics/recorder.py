"""Counts what a process does, with ``prometheus_client``.

In a model process of a kept server the numbers lie in files mapped into memory, in the folder that ``PROMETHEUS_MULTIPROC_DIR`` names
(``keeper/server_process.py`` sets it), where the keeper reads them; an event costs 1 to 2 us. Elsewhere they stay in the process.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from bistream.metrics.catalogue import BY_NAME, PROCESS_CPU, PROCESS_MEMORY, THREADS, Labels, MetricFamily, MetricType

logger = logging.getLogger(__name__)

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Recorder:
    """Everything one process records. Thread-safe, but for ``refresh``, which one thread calls."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._lock = threading.Lock()
        self._metrics: dict[MetricFamily, Any] = {}
        self._readings: list[tuple[MetricFamily, Callable[[], Mapping[Labels, float]]]] = []
        self._counted: dict[tuple[MetricFamily, Labels], float] = {}

    def counter(self, family: MetricFamily, *labels: str) -> Counter:
        """The counter with these label values; all known ones of the family exist from the first call on, so that a rate sees their first
        event."""
        assert family.kind is MetricType.COUNTER
        return cast(Counter, self._series(family, labels))

    def histogram(self, family: MetricFamily, *labels: str) -> Histogram:
        """As ``counter``."""
        assert family.kind is MetricType.HISTOGRAM
        return cast(Histogram, self._series(family, labels))

    def read(self, family: MetricFamily, values: Callable[[], Mapping[Labels, float]]) -> None:
        """Take ``values`` at every ``refresh``: of a gauge, or of a counter that something else counts. Known labels that they omit are
        0."""
        assert BY_NAME.get(family.name) is family and family.kind is not MetricType.HISTOGRAM
        self._readings.append((family, values))

    def read_process(self, model: str) -> None:
        """Threads, memory and CPU seconds of this process, as one of ``model``."""
        self.read(THREADS, lambda: {(model,): threading.active_count()})
        self.read(PROCESS_CPU, lambda: {(model,): time.process_time()})
        self.read(PROCESS_MEMORY, lambda: {(model,): _resident_bytes()})

    def refresh(self) -> None:
        """Read everything that ``read`` was given. A family that cannot be read keeps its values."""
        for family, read in self._readings:
            try:
                values = read()
            except Exception:
                logger.exception("%s could not be read", family.name)
                continue
            for labels in {*family.known_labels, *values}:
                series, value = self._series(family, labels), values.get(labels, 0.0)
                if family.kind is MetricType.GAUGE:
                    series.set(value)
                else:
                    series.inc(value - self._counted.get((family, labels), 0.0))
                    self._counted[family, labels] = value

    def _series(self, family: MetricFamily, labels: Labels) -> Any:
        assert BY_NAME.get(family.name) is family, f"add {family.name} to catalogue.py"
        for value, (name, known) in zip(labels, family.labels.items(), strict=True):
            assert not known or value in known, f"{family.name}: {value!r} is no value of {name}"
        with self._lock:
            if family not in self._metrics:
                self._metrics[family] = self._made(family)
                for known_labels in family.known_labels if family.labels else ():
                    self._metrics[family].labels(*known_labels)
            return self._metrics[family].labels(*labels) if labels else self._metrics[family]

    def _made(self, family: MetricFamily) -> Counter | Gauge | Histogram:
        names = tuple(family.labels)
        if family.kind is MetricType.COUNTER:
            return Counter(family.name, family.help, names, registry=self.registry)
        if family.kind is MetricType.GAUGE:
            return Gauge(family.name, family.help, names, registry=self.registry, multiprocess_mode="livesum")
        return Histogram(family.name, family.help, names, registry=self.registry, buckets=family.buckets)


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as fields:
        return int(fields.read().split()[1]) * _PAGE_BYTES
