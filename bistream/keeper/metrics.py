"""The text of the keeper's ``/metrics``: what the models wrote, what the keeper knows itself, and Triton's own metrics after it.

One target for Prometheus, and the only one with our histograms (``bistream/metrics/exporter.py`` says why). Called by ``health.py``'s
threads, once for each scrape; it keeps nothing.
"""

from __future__ import annotations

import logging
import urllib.error
import urllib.request
from pathlib import Path
from typing import Protocol

from bistream.keeper.server_process import TritonServer
from bistream.metrics.exporter import read_reports
from bistream.metrics.families import METRICS_AGE, SERVER_READY, SERVER_RESTARTS
from bistream.metrics.snapshot import Snapshot, add_up, exposition

logger = logging.getLogger(__name__)

TRITON_TIMEOUT_S = 2.0


class Supervising(Protocol):
    """The part of ``Supervisor`` whose state is exported."""

    @property
    def is_ready(self) -> bool: ...
    @property
    def restarts(self) -> int: ...
    @property
    def current_server(self) -> TritonServer | None: ...


class KeeperMetrics:
    def __init__(self, supervisor: Supervising) -> None:
        self._supervisor = supervisor

    def text(self) -> str:
        """Prometheus' text format. Never raises: a server that is down leaves its part out."""
        own = Snapshot({(SERVER_READY.name, ()): float(self._supervisor.is_ready), (SERVER_RESTARTS.name, ()): self._supervisor.restarts})
        server = self._supervisor.current_server
        if server is None:
            return exposition(own)
        host = server.http_url.rpartition(":")[0]  # where Triton's metrics are as well
        return exposition(add_up([own, models_snapshot(server.control_directory)])) + triton_text(f"{host}:{server.ports.metrics}")


def models_snapshot(directory: Path) -> Snapshot:
    """The sum over the processes of a server, and how old their numbers are. Of a process that has ended only what it counted remains."""
    reports = read_reports(directory)
    total = add_up(report.snapshot if report.is_alive else report.snapshot.without_gauges() for report in reports)
    for report in reports:
        series = (METRICS_AGE.name, (report.model_name,))
        if report.is_alive:
            total.values[series] = max(report.age_s, total.values.get(series, 0.0))
    return total


def triton_text(address: str) -> str:
    """Triton's own metrics; empty when the server does not answer."""
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=TRITON_TIMEOUT_S) as response:
            return str(response.read().decode())
    except (urllib.error.URLError, OSError) as error:
        logger.debug("Triton's metrics could not be read: %s", error)
        return ""
