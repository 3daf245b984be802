"""Client processes of a load test.

One Python process can be busier than the server that it measures. So the tasks of a load are dealt out to processes, which begin at the
same moment; each reports how much of a core it used and how late its tasks began.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

TASKS_PER_PROCESS = 32
BUSY_SHARE = 0.7  # of a core: above it, times of this process say more about the client than about the server
LEAD_S = 0.5  # between the last process's readiness and the first task
POLL_S = 1.0
Plan = TypeVar("Plan")


@dataclass(frozen=True)
class ProcessLoad:
    """busiest_client: largest share of a core that a client process used. latest_start_s: behind its plan."""

    wall_s: float
    busiest_client: float
    latest_start_s: float

    def warning(self) -> str | None:
        if self.busiest_client < BUSY_SHARE:
            return None
        return f"a client process used {self.busiest_client:.0%} of a core: take more processes, the times are partly its own"


@dataclass(frozen=True)
class Task:
    """Work that begins ``begin_s`` after the beginning of the load. results: given that beginning, in ``time.monotonic()``."""

    begin_s: float
    results: Callable[[float], Iterator[Any]]


@dataclass(frozen=True)
class _End:
    core_share: float
    latest_start_s: float


def default_processes(tasks: int) -> int:
    return max(1, min(os.cpu_count() or 1, -(-tasks // TASKS_PER_PROCESS)))


def run_processes(prepare: Callable[[Plan], Sequence[Task]], plans: Sequence[Plan], on_result: Callable[[Any], None]) -> ProcessLoad:
    """A process for each plan, of which ``prepare`` makes the tasks there, at least one. Both are pickled, as are the results.

    on_result: called in this thread; an exception of it, or Ctrl-C, ends all processes. Raises ``RuntimeError`` when one fails.
    """
    context = multiprocessing.get_context("spawn")
    messages, begins = context.Queue(), [context.SimpleQueue() for _ in plans]
    arguments = [(prepare, plan, begin, messages) for plan, begin in zip(plans, begins, strict=True)]
    children = [context.Process(target=_serve, args=given, daemon=True) for given in arguments]

    def receive() -> Any:
        while True:
            try:
                return messages.get(timeout=POLL_S)
            except queue.Empty:
                if any(child.exitcode not in (None, 0) for child in children):
                    raise RuntimeError("A client process ended without a result; its error is above.") from None

    try:
        for child in children:
            child.start()
        for _ in children:
            assert receive() is None, "ready"
        began = time.monotonic() + LEAD_S  # one clock for all processes of a host
        for begin in begins:
            begin.put(began)
        ends: list[_End] = []
        while len(ends) < len(children):
            if isinstance(message := receive(), _End):
                ends.append(message)
            else:
                on_result(message)
        wall_s = time.monotonic() - began
    finally:
        for child in children:
            if child.pid is not None:
                child.kill()
                child.join()
    return ProcessLoad(wall_s, max(end.core_share for end in ends), max(end.latest_start_s for end in ends))


def _serve(prepare: Callable[[Plan], Sequence[Task]], plan: Plan, begin: Any, messages: Any) -> None:
    """The life of a client process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the benchmark as well, which ends this process
    tasks = prepare(plan)
    messages.put(None)  # ready
    began, late = begin.get(), [0.0]

    def run(task: Task) -> None:
        time.sleep(max(0.0, began + task.begin_s - time.monotonic()))
        late.append(time.monotonic() - began - task.begin_s)
        for result in task.results(began):
            messages.put(result)

    cpu_s = time.process_time()
    with ThreadPoolExecutor(len(tasks)) as pool:
        for _ in pool.map(run, tasks):
            pass
    messages.put(_End((time.process_time() - cpu_s) / (time.monotonic() - began), max(late)))
