"""The metrics of a real server, read as Prometheus reads them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from bistream.keeper.metrics import KeeperMetrics
from bistream.keeper.server_process import TritonServer
from bistream.keeper.supervisor import Supervisor
from tests.triton.conftest import wait_for

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@dataclass(frozen=True)
class Supervised:
    """What ``KeeperMetrics`` reads of a supervisor, for a server without one."""

    current_server: TritonServer
    is_ready: bool = True
    restarts: int = 0


class Scrape:
    def __init__(self, text: str) -> None:
        self.families: Mapping[str, Metric] = {family.name: family for family in text_string_to_metric_families(text)}
        self._samples: Samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value for family in self.families.values() for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float:
        """The sample's value, 0 where there is none."""
        return self._samples.get((name, frozenset(labels.items())), 0.0)


def scrape(server: TritonServer) -> Scrape:
    """What the keeper of this server answers at ``/metrics``."""
    return Scrape(KeeperMetrics(cast(Supervisor, Supervised(server))).text())


def fresh_scrape(server: TritonServer) -> Scrape:
    """With everything that happened before this call: every process has written its metrics since."""
    began = time.monotonic()
    found: list[Scrape] = []

    def is_fresh() -> bool:
        waited_s = time.monotonic() - began
        found[:] = [scrape(server)]
        ages = found[0].families["bistream_metrics_age_s"].samples
        return bool(ages) and all(sample.value < waited_s for sample in ages)

    wait_for(is_fresh, "new metrics of every process")
    return found[0]


def session_lines(log: Path) -> list[dict[str, Any]]:
    """The lines about ended sessions in a server's log."""
    lines = log.read_text(encoding="utf-8").rpartition("\n")[0].splitlines()  # the last one may still be written
    return [json.loads(line) for line in lines if line.startswith('{"event": "session_end"')]
