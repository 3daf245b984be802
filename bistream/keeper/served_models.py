"""The models of a running server, as the keeper treats them: which have died, load one anew, end their sessions."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from bistream.keeper.hang_watch import Sign
from bistream.keeper.model_control import ModelControl
from bistream.keeper.model_processes import STOPPED, ModelProcess, ModelProcesses, process_state
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


class ServedModels:
    """Of a server whose models are loaded. ``unload`` and ``load`` may be called by another thread."""

    def __init__(self, control: ModelControl, server_pid: int, pulse: StubPulse, directory: Path) -> None:
        """directory: of the control files."""
        self._control = control
        self._pulse = pulse
        self._directory = directory
        self._processes = ModelProcesses(server_pid)
        self._processes.find()

    def take_dead(self) -> list[str]:
        """The models of which a process has died since the last call."""
        dead = self._processes.take_dead()
        for process in dead:
            forget_process(self._directory, process.model, process.pid)
        return [process.model for process in dead]

    def signs(self) -> dict[ModelProcess, Sign]:
        """What is seen of every living process now."""
        return {process: self._sign(process) for process in self._processes.living}

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
            self._pulse.adopt()
            self._processes.find()
