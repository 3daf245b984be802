"""Client processes of a load test, and what they exchange with the benchmark that starts them.

One Python process can be busier than the server it measures: so the tasks of a load are dealt out to processes, and each reports how much
of a core it used and how late its tasks began. A client process is a program that calls ``serve``. It reads a plan as one line of JSON,
says ``ready``, reads the time to begin, and prints each result as one line of JSON when it has it, and at last its own measurements.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TASKS_PER_PROCESS = 32
BUSY_SHARE = 0.7  # of a core: above it, times of this process say more about the client than about the server
LEAD_S = 0.5  # between the last process's readiness and the first task
Result = dict[str, Any]


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


def default_processes(tasks: int) -> int:
    return max(1, min(os.cpu_count() or 1, -(-tasks // TASKS_PER_PROCESS)))


# The benchmark's side


def run_processes(program: Path, plans: Sequence[dict[str, Any]], on_result: Callable[[Result], None]) -> ProcessLoad:
    """Start ``program`` once for each plan. on_result: called in this thread; an exception of it, or Ctrl-C, ends all processes.

    Raises ``RuntimeError`` when a client process fails.
    """
    children = [subprocess.Popen([sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in plans]
    messages: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    readers: list[threading.Thread] = []
    try:
        for child, plan in zip(children, plans, strict=True):
            _say(child, json.dumps(plan))
        for child in children:
            _hear(child)
        began = time.monotonic() + LEAD_S  # one clock for all processes of a host
        for child in children:
            _say(child, repr(began))
            readers.append(threading.Thread(target=_forward, args=(child, messages), daemon=True))
            readers[-1].start()
        ends: list[dict[str, float]] = []
        while len(ends) < len(children):
            message = messages.get()
            if message is None:
                raise _failed()
            if "end" in message:
                ends.append(message["end"])
            else:
                on_result(message["result"])
        wall_s = time.monotonic() - began
    finally:
        for child in children:
            child.kill()
            child.wait()
        for reader in readers:
            reader.join()
        for child in children:
            _close(child)
    return ProcessLoad(wall_s, max(end["core_share"] for end in ends), max(end["latest_start_s"] for end in ends))


def _forward(child: subprocess.Popen[str], messages: queue.SimpleQueue[dict[str, Any] | None]) -> None:
    """Until its last message; None: it ended without one."""
    with suppress(RuntimeError, ValueError):  # it was killed, perhaps inside a line
        while True:
            message = json.loads(_hear(child))
            messages.put(message)
            if "end" in message:
                return
    messages.put(None)


def _close(child: subprocess.Popen[str]) -> None:
    """The pipes of a process that has ended."""
    for pipe in (child.stdin, child.stdout):
        with suppress(BrokenPipeError):  # a line that it did not read
            if pipe is not None:
                pipe.close()


def _say(child: subprocess.Popen[str], line: str) -> None:
    """The plan goes through a pipe, so that an API key is in no command line."""
    assert child.stdin is not None
    try:
        child.stdin.write(line + "\n")
        child.stdin.flush()
    except BrokenPipeError:
        raise _failed() from None


def _hear(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        raise _failed()
    return line


def _failed() -> RuntimeError:
    return RuntimeError("A client process ended without a result; its error is above.")


# The client process's side


@dataclass(frozen=True)
class Task:
    """Work that begins ``begin_s`` after the beginning of the load. results: given that beginning, in ``time.monotonic()``."""

    begin_s: float
    results: Callable[[float], Iterator[Result]]


def serve(prepare: Callable[[dict[str, Any]], Sequence[Task]]) -> None:
    """The life of a client process. ``prepare`` makes the tasks of a plan, at least one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the benchmark as well, which ends this process
    if not (line := sys.stdin.readline()):
        return
    tasks = prepare(json.loads(line))
    print("ready", flush=True)
    if not (line := sys.stdin.readline()):
        return
    began, late, output = float(line), [0.0], threading.Lock()

    def run(task: Task) -> None:
        time.sleep(max(0.0, began + task.begin_s - time.monotonic()))
        late.append(time.monotonic() - began - task.begin_s)
        for result in task.results(began):
            with output:
                print(json.dumps({"result": result}), flush=True)

    cpu_s = time.process_time()
    with ThreadPoolExecutor(len(tasks)) as pool:
        for _ in pool.map(run, tasks):
            pass
    share = (time.process_time() - cpu_s) / (time.monotonic() - began)
    print(json.dumps({"end": {"core_share": share, "latest_start_s": max(late)}}), flush=True)
