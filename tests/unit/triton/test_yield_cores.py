"""A model without deadlines computes at a lower priority: the thread that says so and those that it starts, no others."""

from __future__ import annotations

import os
import threading

import pytest

from bistream.triton.startup import NICENESS, yield_cores, yield_gpu


def priority() -> tuple[int, int]:
    """Niceness and scheduling policy of this thread."""
    thread = threading.get_native_id()
    return os.getpriority(os.PRIO_PROCESS, thread), os.sched_getscheduler(thread)


def test_the_thread_and_those_that_it_starts_yield() -> None:
    found: list[tuple[int, int]] = []

    def compute() -> None:
        yield_cores()
        found.append(priority())
        child = threading.Thread(target=lambda: found.append(priority()))
        child.start()
        child.join()

    before = priority()
    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    assert found == [(min(19, before[0] + NICENESS), os.SCHED_BATCH)] * 2
    assert priority() == before


def test_a_priority_on_the_gpu_that_somebody_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_MPS_CLIENT_PRIORITY", raising=False)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    yield_gpu()
    assert os.environ["CUDA_MPS_CLIENT_PRIORITY"] == "1"
    os.environ["CUDA_MPS_CLIENT_PRIORITY"] = "0"
    yield_gpu()
    assert os.environ["CUDA_MPS_CLIENT_PRIORITY"] == "0"
