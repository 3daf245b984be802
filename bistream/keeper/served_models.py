"""The models of a running server, as the keeper treats them: which have died, what each shows of life, load one anew, end their sessions.

Triton neither restarts a dead model process nor reports it: readiness stays 200. A dead process keeps its entry in the process table until
the server drops the model's instance, which it never does once a request has met the dead process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path

from bistream.keeper.host import SHARED_MEMORY
from bistream.keeper.model_control import ModelControl
from bistream.keeper.model_processes import DEAD, STOPPED, model_of, process_state, stubs_of
from bistream.keeper.stub_pulse import StubPulse
from bistream.processes.control_files import LONGEST_STOP_S, Order, forget_process, read_status, read_statuses, write_order

CLOSING_S = LONGEST_STOP_S + 2.0  # after the deadline of a drain, to notify the remaining clients and close their sessions
TELLING_S = 2.0  # after the deadline of a failure, to notify them; nothing is closed then


class Ending:
    """The end of the sessions, as ordered: poll ``is_over``. Raises ``OSError`` when the order cannot be written."""

    def __init__(self, directory: Path, order: Order, clock: Callable[[], float] = time.monotonic) -> None:
        """directory: of the control files."""
        self._directory = directory
        self._clock = clock
        self._give_up_at = clock() + order.patience_s + (CLOSING_S if order.failed is None else TELLING_S)
        write_order(directory, order)

    def is_over(self) -> bool:
        """Whether every front model has reported that no session is left, or the time is up."""
        statuses = read_statuses(self._directory)
        return self._clock() >= self._give_up_at or all(status.is_drained for _, status in statuses if status.sessions is not None)

    @property
    def sessions_left(self) -> int:
        """Sessions still running at the front models that have begun to end them."""
        return sum(status.sessions or 0 for _, status in read_statuses(self._directory))


@dataclass(frozen=True)
class ModelProcess:
    pid: int
    model: str


@dataclass(frozen=True)
class Sign:
    """What is seen of one process at one look. beat: changes while it works; ``None``: it gives no such sign, only its stop counts."""

    beat: Hashable
    is_stopped: bool = False
    busy_s: float = 0.0


class ServedModels:
    """Of one server. ``find`` while its models load, and after each that is loaded anew. ``unload`` and ``load`` may be called by another
    thread; ``stop`` before the server is terminated."""

    def __init__(self, control: ModelControl, server: int, directory: Path, shared_memory: Path = SHARED_MEMORY) -> None:
        """server: process id. directory: of the control files."""
        self._control = control
        self._server = server
        self._directory = directory
        self._living: dict[int, ModelProcess] = {}
        self._pulse = StubPulse(shared_memory)

    @property
    def living(self) -> tuple[ModelProcess, ...]:
        return tuple(self._living.values())

    def find(self) -> None:
        """Look for processes that have been started since."""
        for pid, arguments in stubs_of(self._server):
            if pid not in self._living:
                self._pulse.adopt(pid, arguments)
                self._living[pid] = ModelProcess(pid, model_of(arguments))

    def take_dead(self) -> list[str]:
        """The models of which a process has died since the last call."""
        states = {pid: process_state(pid) for pid in tuple(self._living)}
        dead = [self._living.pop(pid) for pid, state in states.items() if state is None or state in DEAD]
        for process in dead:
            forget_process(self._directory, process.model, process.pid)
        return [process.model for process in dead]

    def signs(self) -> dict[ModelProcess, Sign]:
        """What is seen of every living process now."""
        return {process: self._sign(process) for process in self.living}

    def _sign(self, process: ModelProcess) -> Sign:
        status = read_status(self._directory, process.model, process.pid)
        is_stopped = process_state(process.pid) in STOPPED
        return Sign(None, is_stopped) if status is None else Sign(status.beats, is_stopped, status.busy_s)

    def unload(self, model: str) -> None:
        """Take one model out of service; the others serve on. Raises ``ServerError``."""
        self._control.unload(model)

    def load(self, model: str) -> None:
        """Load an unloaded model; returns when it serves. Raises ``ServerError``."""
        try:
            self._control.load(model)
        finally:
            self.find()

    def stop(self) -> None:
        """Nothing is written into the memory of the processes after this. Idempotent."""
        self._pulse.stop()
