"""The keeper's metrics page as numbers: differences between two scrapes, and quantiles of them. Pure but for ``scrape``."""

from __future__ import annotations

import itertools
import re
import time
import urllib.request
from dataclasses import dataclass, field

from bistream.metrics.catalogue import BY_NAME, Labels, MetricType

WAIT_S = 30.0
_SAMPLE = re.compile(r"^(bistream_\w+?)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_PART = re.compile(r"_(bucket|sum|count)$")


@dataclass(frozen=True)
class Buckets:
    """A histogram. counts: observations in each bucket, the last one above all bounds; not cumulative. total: sum of the values."""

    counts: tuple[int, ...]
    total: float

    def __sub__(self, earlier: Buckets) -> Buckets:
        """Observations since ``earlier``."""
        differences = (now - before for now, before in zip(self.counts, earlier.counts, strict=True))
        return Buckets(tuple(differences), self.total - earlier.total)

    @property
    def count(self) -> int:
        return sum(self.counts)


@dataclass
class Snapshot:
    """By name and label values. values: counters and gauges."""

    values: dict[tuple[str, Labels], float] = field(default_factory=dict)
    buckets: dict[tuple[str, Labels], Buckets] = field(default_factory=dict)


def parse(text: str) -> Snapshot:
    """Of our own exposition; other programs' metrics are left out."""
    snapshot, cumulative, totals = Snapshot(), dict[tuple[str, Labels], list[int]](), dict[tuple[str, Labels], float]()
    for name, inside, value in _SAMPLE.findall(text):
        labels = dict(_LABEL.findall(inside))
        bound = labels.pop("le", None)
        stem = _PART.sub("", name)
        series = (stem, tuple(labels.values()))
        if stem not in BY_NAME or BY_NAME[stem].kind is not MetricType.HISTOGRAM:
            snapshot.values[name, tuple(labels.values())] = float(value)
        elif bound is not None:
            cumulative.setdefault(series, []).append(int(float(value)))
        elif name.endswith("_sum"):
            totals[series] = float(value)
    for series, counts in cumulative.items():
        single = (now - before for before, now in itertools.pairwise([0, *counts]))
        snapshot.buckets[series] = Buckets(tuple(single), totals[series])
    return snapshot


def scrape(url: str) -> Snapshot:
    """With all that happened before this call: every process has written its numbers since. Raises ``OSError``, ``RuntimeError``."""
    began = time.monotonic()
    while time.monotonic() - began < WAIT_S:
        waited_s = time.monotonic() - began
        with urllib.request.urlopen(url, timeout=WAIT_S) as response:
            snapshot = parse(response.read().decode())
        ages = [value for (name, _), value in snapshot.values.items() if name == "bistream_metrics_age_s"]
        if ages and max(ages) < waited_s:
            return snapshot
        time.sleep(0.1)
    raise RuntimeError(f"{url} shows no fresh numbers of the models; give the address of serve.py's --health-port.")


@dataclass(frozen=True)
class Between:
    """The difference of two scrapes of one server."""

    before: Snapshot
    after: Snapshot

    def buckets(self, name: str, *labels: str) -> Buckets:
        return self.after.buckets[name, labels] - self.before.buckets[name, labels]

    def grown(self, name: str, *labels: str) -> float:
        return self.after.values[name, labels] - self.before.values[name, labels]


def mean(buckets: Buckets) -> float:
    return buckets.total / buckets.count if buckets.count else 0.0


def quantile(bounds: tuple[float, ...], buckets: Buckets, share: float) -> float:
    """As Prometheus' ``histogram_quantile``: linear inside a bucket; above all bounds, the largest of them. 0 without observations."""
    rank, seen, lower = share * buckets.count, 0.0, 0.0
    for bound, count in zip(bounds, buckets.counts, strict=False):
        if count and seen + count >= rank:
            return lower + (bound - lower) * (rank - seen) / count
        seen, lower = seen + count, bound
    return bounds[-1] if buckets.count else 0.0
