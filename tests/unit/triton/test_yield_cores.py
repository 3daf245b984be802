"""A model without deadlines computes at a lower priority: the thread that says so and those that it starts, no others."""

from __future__ import annotations

import os
import threading

from bistream.triton.startup import NICENESS, yield_cores


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
