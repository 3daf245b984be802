"""The numbers of one or several processes at one moment: their sum, their form in a file, their form for Prometheus. Pure."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from bistream.metrics.families import ALL, BY_NAME, Family, Kind, Labels

Series = tuple[str, Labels]  # name of the family, label values


@dataclass(frozen=True)
class Buckets:
    """A histogram. counts: as in ``recorder.Histogram``. total: sum of the observed values."""

    counts: tuple[int, ...]
    total: float

    def __add__(self, other: Buckets) -> Buckets:
        return Buckets(tuple(map(sum, zip(self.counts, other.counts, strict=True))), self.total + other.total)

    def __sub__(self, earlier: Buckets) -> Buckets:
        """What was observed since ``earlier``."""
        differences = (now - before for now, before in zip(self.counts, earlier.counts, strict=True))
        return Buckets(tuple(differences), self.total - earlier.total)

    @property
    def count(self) -> int:
        return sum(self.counts)


@dataclass
class Snapshot:
    """values: counters and gauges."""

    values: dict[Series, float] = field(default_factory=dict)
    buckets: dict[Series, Buckets] = field(default_factory=dict)

    def without_gauges(self) -> Snapshot:
        """What remains true of a process that has ended."""
        kept = {series: value for series, value in self.values.items() if BY_NAME[series[0]].kind is not Kind.GAUGE}
        return Snapshot(kept, dict(self.buckets))


def add_up(snapshots: Iterable[Snapshot]) -> Snapshot:
    """The sum, series by series: sessions of two front doors are the server's sessions."""
    total = Snapshot()
    for snapshot in snapshots:
        for series, value in snapshot.values.items():
            total.values[series] = total.values.get(series, 0.0) + value
        for series, buckets in snapshot.buckets.items():
            known = total.buckets.get(series)
            total.buckets[series] = buckets if known is None else known + buckets
    return total


def to_json(snapshot: Snapshot) -> str:
    values = [[name, labels, value] for (name, labels), value in snapshot.values.items()]
    buckets = [[name, labels, one.counts, one.total] for (name, labels), one in snapshot.buckets.items()]
    return json.dumps([values, buckets], separators=(",", ":"))


def from_json(text: str) -> Snapshot:
    """The inverse of ``to_json``. Raises ``ValueError``."""
    values, buckets = json.loads(text)
    return Snapshot(
        {(name, tuple(labels)): value for name, labels, value in values},
        {(name, tuple(labels)): Buckets(tuple(counts), total) for name, labels, counts, total in buckets},
    )


def exposition(snapshot: Snapshot) -> str:
    """Prometheus' text format 0.0.4."""
    present = {name for name, _ in (*snapshot.values, *snapshot.buckets)}
    return "".join(f"{line}\n" for family in ALL if family.name in present for line in _family_lines(family, snapshot))


def _family_lines(family: Family, snapshot: Snapshot) -> Iterator[str]:
    yield f"# HELP {family.name} {family.help}"
    yield f"# TYPE {family.name} {family.kind.value}"
    for (name, labels), value in sorted(snapshot.values.items()):
        if name == family.name:
            yield f"{name}{_labels(family, labels)} {_number(value)}"
    for (name, labels), buckets in sorted(snapshot.buckets.items(), key=lambda item: item[0]):
        if name == family.name:
            yield from _histogram_lines(family, labels, buckets)


def _histogram_lines(family: Family, labels: Labels, buckets: Buckets) -> Iterator[str]:
    bounds = [*map(_number, family.buckets), "+Inf"]
    for bound, count in zip(bounds, itertools.accumulate(buckets.counts), strict=True):
        yield f"{family.name}_bucket{_labels(family, labels, bound)} {count}"
    yield f"{family.name}_sum{_labels(family, labels)} {_number(buckets.total)}"
    yield f"{family.name}_count{_labels(family, labels)} {buckets.count}"


def _labels(family: Family, labels: Labels, bound: str | None = None) -> str:
    pairs = [f'{name}="{value}"' for name, value in zip(family.labels, labels, strict=True)]
    if bound is not None:
        pairs.append(f'le="{bound}"')
    return f"{{{','.join(pairs)}}}" if pairs else ""


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
