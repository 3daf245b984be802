"""The keeper's page: sums over processes, what it knows itself, and Triton's text after it."""

from __future__ import annotations

import http.server
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bistream.keeper.metrics import KeeperMetrics, triton_text
from bistream.metrics.families import HOP_QUEUE, SESSION_STARTS
from bistream.metrics.recorder import Recorder
from bistream.metrics.snapshot import to_json

GONE = 2**22 + 1  # above the largest process id of Linux
TRITON = "# HELP nv_x Triton's own\n# TYPE nv_x gauge\nnv_x 7\n"


@dataclass
class Supervised:
    current_server: Any = None
    is_ready: bool = False
    restarts: int = 0


def samples(text: str) -> dict[tuple[str, str], float]:
    """By name and the value of the only label."""
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(sample.name, next(iter(sample.labels.values()), "")): sample.value for sample in found}


def write_process(directory: Path, name: str, pid: int, starts: int) -> None:
    recorder = Recorder()
    recorder.counter(SESSION_STARTS).add(starts)
    recorder.read(HOP_QUEUE, lambda: {(): 5})
    (directory / f"{name}-{pid}.metrics").write_text(to_json(recorder.snapshot()))


@pytest.fixture
def triton_port() -> Iterator[int]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(TRITON.encode())

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_before_the_first_server_there_is_the_keeper_alone() -> None:
    assert samples(KeeperMetrics(Supervised()).text()) == {("bistream_server_ready", ""): 0, ("bistream_server_restarts_total", ""): 0}


def test_processes_are_added_up_and_triton_follows(tmp_path: Path, triton_port: int) -> None:
    """Of a process that has ended the counters remain, and the gauges do not."""
    write_process(tmp_path, "door", os.getpid(), 2)
    write_process(tmp_path, "other", os.getppid(), 3)
    write_process(tmp_path, "other", GONE, 10)
    server = SimpleNamespace(control_directory=tmp_path, http_url="127.0.0.1:1", ports=SimpleNamespace(metrics=triton_port))
    found = samples(KeeperMetrics(Supervised(server, is_ready=True, restarts=4)).text())
    assert found["bistream_session_starts_total", ""] == 15
    assert found["bistream_hop_queue_depth", ""] == 10
    assert (found["bistream_server_ready", ""], found["bistream_server_restarts_total", ""], found["nv_x", ""]) == (1, 4, 7)
    assert {label for name, label in found if name == "bistream_metrics_age_s"} == {"door", "other"}


def test_a_server_that_is_gone_leaves_its_part_out(tmp_path: Path, triton_port: int) -> None:
    assert triton_text(f"127.0.0.1:{triton_port}") == TRITON
    server = SimpleNamespace(control_directory=tmp_path / "gone", http_url="127.0.0.1:1", ports=SimpleNamespace(metrics=1))
    assert len(samples(KeeperMetrics(Supervised(server)).text())) == 2
