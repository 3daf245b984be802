"""The text of the keeper's ``/metrics``: what the models count, what the keeper knows itself, and Triton's own metrics after it.

One target for Prometheus, and the only one with our numbers. Triton's own custom metrics were measured for them: an update is a round
trip of 27 to 40 us to the server, and a histogram takes one per observation. Called by ``health.py``'s threads, once for each scrape; it
keeps nothing.
"""

from __future__ import annotations

import contextlib
import http.client
import time
from collections.abc import Iterable
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from bistream.keeper.health import METRICS
from bistream.keeper.host import fetch
from bistream.keeper.supervisor import Supervisor
from bistream.metrics.catalogue import METRICS_AGE, SERVER_READY, SERVER_RESTARTS
from bistream.processes.control_files import read_statuses

TRITON_TIMEOUT_S = 2.0


class KeeperMetrics(Collector):
    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def text(self) -> str:
        """Prometheus' text format. Never raises: a server that is down leaves its part out."""
        own = CollectorRegistry()
        own.register(self)
        page = generate_latest(own).decode()
        server = self._supervisor.current_server
        if server is None:
            return page
        host = server.http_url.rpartition(":")[0]  # where Triton's metrics are as well
        status, text = fetch(f"{host}:{server.ports.metrics}", METRICS, TRITON_TIMEOUT_S) or (0, "")
        return page + models_text(server.control_directory) + (text if status == http.client.OK else "")

    def collect(self) -> Iterable[Metric]:
        """What the keeper knows itself."""
        supervisor = self._supervisor
        yield GaugeMetricFamily(SERVER_READY.name, SERVER_READY.help, float(supervisor.is_ready))
        yield CounterMetricFamily(SERVER_RESTARTS.name, SERVER_RESTARTS.help, supervisor.restarts)
        if supervisor.current_server is not None:
            ages = GaugeMetricFamily(METRICS_AGE.name, METRICS_AGE.help, labels=tuple(METRICS_AGE.labels))
            for model, seconds in _ages(supervisor.current_server.control_directory).items():
                ages.add_metric([model], seconds)
            yield ages


def _ages(directory: Path) -> dict[str, float]:
    """Of the gauges of each model, by the process that read them least recently."""
    ages: dict[str, float] = {}
    for model, status in read_statuses(directory):
        if status.counted_at:  # else it still loads
            ages[model] = max(time.monotonic() - status.counted_at, ages.get(model, 0.0))
    return ages


def models_text(directory: Path) -> str:
    """What the models of a server count; empty when it has ended. directory: of the control files."""
    models = CollectorRegistry()
    with contextlib.suppress(ValueError, OSError):  # the folder is gone
        MultiProcessCollector(models, str(directory))  # type: ignore[no-untyped-call]
        return generate_latest(models).decode()
    return ""
