"""What the gate counts, as plain numbers (a message is counted twice in a few hundred nanoseconds), and their Prometheus exposition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


@dataclass
class Metrics:
    """Totals since the start. refusals: errors that the gate itself gave, by code; errors: those that came from the server."""

    streams: int = 0
    sessions: int = 0
    requests: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    audio_bytes: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)


class Exposition(Collector):
    """The metrics in Prometheus' text form."""

    def __init__(self, metrics: Metrics, gauges: Callable[[], dict[str, float]]) -> None:
        self._metrics = metrics
        self._gauges = gauges
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        metrics = self._metrics
        for name, value, text in (
            ("streams", metrics.streams, "Client streams opened"),
            ("sessions", metrics.sessions, "Sessions started"),
            ("requests", metrics.requests, "Requests received"),
            ("received_bytes", metrics.bytes_in, "Bytes of requests received"),
            ("sent_bytes", metrics.bytes_out, "Bytes of responses sent"),
            ("audio_bytes", metrics.audio_bytes, "Bytes of audio sent"),
        ):
            yield CounterMetricFamily(f"bistream_gate_{name}", text, value=value)
        for name, counts, text in (
            ("refusals", metrics.refusals, "Errors that the gate gave, by code"),
            ("server_errors", metrics.errors, "Errors that the server gave, by code"),
        ):
            family = CounterMetricFamily(f"bistream_gate_{name}", text, labels=["code"])
            for code, count in sorted(counts.items()):
                family.add_metric([code], count)
            yield family
        for name, gauge in self._gauges().items():
            yield GaugeMetricFamily(f"bistream_gate_{name}", f"Now: {name.replace('_', ' ')}", value=gauge)
