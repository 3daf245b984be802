"""What this process counts, in Prometheus' text form: ``/metrics``. Servers are labelled by their place on the command line."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from interfaces.core.record import Ending
from interfaces.core.servers import Server
from interfaces.core.service import FIRST_AUDIO_BUCKETS_S, SpeechService

PREFIX = "bistream_interfaces"


def exposition(service: SpeechService, open_sockets: int) -> str:
    registry = CollectorRegistry()
    registry.register(_Counted(service, open_sockets))
    return generate_latest(registry).decode()


class _Counted(Collector):
    def __init__(self, service: SpeechService, open_sockets: int) -> None:
        self._service = service
        self._open_sockets = open_sockets

    def collect(self) -> Iterator[Metric]:
        counts, servers = self._service.counts, self._service.servers.all
        gauges: tuple[tuple[str, str, float], ...] = (
            ("utterances", "Utterances that are under way.", self._service.open_speeches),
            ("sockets", "Open WebSockets.", self._open_sockets),
            ("servers_ready", "Servers that take sessions.", sum(server.is_ready is True for server in servers)),
            ("draining", "1 once the process takes no new requests.", self._service.drains.is_set()),
        )
        for name, text, value in gauges:
            yield GaugeMetricFamily(f"{PREFIX}_{name}", text, value)
        totals: tuple[tuple[str, str, float], ...] = (
            ("utterances", "Utterances that were begun.", counts.speeches),
            ("refused", "Utterances that were refused.", counts.refused),
            ("failed", "Utterances that failed after they had begun.", counts.failed),
            ("cancelled", "Utterances that clients cancelled or left.", counts.cancelled),
            ("characters", "Characters of the texts.", counts.characters),
            ("audio_seconds", "Audio that was made.", counts.audio_s),
        )
        for name, text, value in totals:
            yield CounterMetricFamily(f"{PREFIX}_{name}", text, value)
        endings = CounterMetricFamily(f"{PREFIX}_endings", "Utterances that are over, by how they ended.", labels=["ending"])
        for ending in Ending:
            endings.add_metric([ending], counts.endings[ending])
        yield endings
        of_servers: tuple[tuple[str, str, Callable[[Server], float]], ...] = (
            ("server_ready", "1 while the server takes sessions.", lambda server: server.is_ready is True),
            ("server_sessions", "Sessions of this process on the server.", lambda server: server.open_sessions),
            ("server_load", "Load of the server by which it is chosen.", lambda server: server.expected_load),
        )
        for name, text, value_of in of_servers:
            family = GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=["server"])
            for number, server in enumerate(servers):
                family.add_metric([str(number)], value_of(server))
            yield family
        bounds = [*map(str, FIRST_AUDIO_BUCKETS_S), "+Inf"]
        yield HistogramMetricFamily(
            f"{PREFIX}_first_audio_s",
            "Seconds from the first text of an utterance to its first audio.",
            list(zip(bounds, itertools.accumulate(counts.first_audio), strict=True)),
            counts.first_audio_s,
        )
