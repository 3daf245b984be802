"""The keeper's page: sums over processes, what it knows itself, and Triton's text after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import values
from prometheus_client.parser import text_string_to_metric_families

from bistream.keeper import metrics
from bistream.keeper.metrics import KeeperMetrics
from bistream.keeper.server_process import METRICS_VARIABLE
from bistream.keeper.supervisor import Supervisor
from bistream.metrics.catalogue import AUDIO_TTFP, HOP_QUEUE, SESSION_STARTS
from bistream.metrics.recorder import Recorder
from bistream.processes.control_files import ProcessStatus, StatusFile, forget_process

TRITON = "# HELP nv_x Triton's own\n# TYPE nv_x gauge\nnv_x 7\n"


@dataclass
class Supervised:
    current_server: Any = None
    is_ready: bool = False
    restarts: int = 0


def page(supervised: Supervised) -> str:
    return KeeperMetrics(cast(Supervisor, supervised)).text()


def samples(text: str) -> dict[tuple[str, str], float]:
    """By name and the value of the only label."""
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(sample.name, next(iter(sample.labels.values()), "")): sample.value for sample in found}


@pytest.fixture
def write_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Counts as the model process ``pid`` would, whose gauges were read when it began."""
    monkeypatch.setenv(METRICS_VARIABLE, str(tmp_path))

    def write(model: str, pid: int, first_audio_s: float) -> None:
        monkeypatch.setattr(values, "ValueClass", values.MultiProcessValue(lambda: pid))  # type: ignore[no-untyped-call]
        recorder = Recorder()
        recorder.counter(SESSION_STARTS).inc(pid)
        recorder.histogram(AUDIO_TTFP, "whole").observe(first_audio_s)
        recorder.read(HOP_QUEUE, lambda: {(): 5})
        recorder.refresh()
        StatusFile(tmp_path, model, pid).write(ProcessStatus(counted_at=1.0))

    return write


def test_before_the_first_server_there_is_the_keeper_alone() -> None:
    assert samples(page(Supervised())) == {("bistream_server_ready", ""): 0, ("bistream_server_restarts_total", ""): 0}


def test_processes_are_added_up_and_triton_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_process: Callable[..., None]
) -> None:
    """Of a process that has ended the counters remain, and the gauges do not."""
    for model, pid, first_audio_s in (("door", 2, 0.1), ("other", 3, 7.0), ("gone", 10, 7.0)):
        write_process(model, pid, first_audio_s)
    StatusFile(tmp_path, "loading", 11).write(ProcessStatus())
    forget_process(tmp_path, "gone", 10)
    server = SimpleNamespace(control_directory=tmp_path, http_url="127.0.0.1:1", ports=SimpleNamespace(metrics=7))
    monkeypatch.setattr(metrics, "fetch", lambda address, path, timeout_s: (200, TRITON) if address == "127.0.0.1:7" else None)
    text = page(Supervised(server, is_ready=True, restarts=4))
    found = samples(text)
    assert found["bistream_session_starts_total", ""] == 15
    assert found["bistream_hop_queue_depth", ""] == 10
    assert found["bistream_audio_ttfp_s_count", "whole"] == 3
    assert found["bistream_audio_ttfp_s_sum", "whole"] == pytest.approx(14.1)
    assert (found["bistream_server_ready", ""], found["bistream_server_restarts_total", ""], found["nv_x", ""]) == (1, 4, 7)
    assert {label for name, label in found if name == "bistream_metrics_age_s"} == {"door", "other"}
    assert "pid=" not in text


def test_a_server_that_is_gone_leaves_its_part_out(tmp_path: Path) -> None:
    server = SimpleNamespace(control_directory=tmp_path / "gone", http_url="127.0.0.1:1", ports=SimpleNamespace(metrics=1))
    assert len(samples(page(Supervised(server)))) == 2
