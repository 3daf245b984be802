"""The models of a running server, as the keeper treats them: which have died, load one anew, announce that one has failed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from bistream.control_files import forget_process
from bistream.heartbeats import read_beat
from bistream.keeper.drain import FailureNotice
from bistream.keeper.hang_watch import Sign
from bistream.keeper.model_control import ModelControl
from bistream.keeper.model_processes import STOPPED, ModelProcess, ModelProcesses, process_state
from bistream.keeper.stub_pulse import StubPulse


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
            forget_process(self._directory, process.pid)
        return [process.model for process in dead]

    def count_dead(self) -> int:
        """Dead processes, taken or not, whose model instance the server keeps, with its threads and its shared memory."""
        return self._processes.count_dead()

    def signs(self) -> dict[ModelProcess, Sign]:
        """What is seen of every living process now."""
        return {process: self._sign(process) for process in self._processes.living}

    def _sign(self, process: ModelProcess) -> Sign:
        beat = read_beat(self._directory, process.model, process.pid)
        is_stopped = process_state(process.pid) in STOPPED
        return Sign(None, is_stopped) if beat is None else Sign(beat.count, is_stopped, beat.busy_s)

    def unload(self, model: str) -> None:
        """Take one model out of service; the others serve on. Raises ``ServerError``."""
        self._control.unload(model)

    def load(self, model: str) -> None:
        """Load an unloaded model; returns when it serves. Raises ``ServerError``."""
        self._pulse.unsettle()
        try:
            self._control.load(model)
        finally:
            self._pulse.settle()
            self._processes.find()

    def tell_failure(self, model: str, patience_s: float, clock: Callable[[], float] = time.monotonic) -> FailureNotice:
        """Make the front doors end the sessions that need ``model`` with an error, the others after ``patience_s``.

        Raises ``OSError`` when that cannot be written.
        """
        notice = FailureNotice(self._directory, model, patience_s, clock)
        notice.start()
        return notice
