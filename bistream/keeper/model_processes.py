"""The model processes (stubs) of one server: which exist, which model each one serves, which have died or are stopped.

Triton neither restarts a dead one nor reports it: readiness stays 200. A dead process keeps its entry in the process table until the server
drops the model's instance, which it never does once a request has met the dead process.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

STUB = b"triton_python_backend_stub"
STUB_FILE, STUB_REGION, STUB_PARENT, STUB_CONTROL = 1, 2, 5, 7  # indices into the stub's command line
DEAD, STOPPED, RUNNABLE = ("Z", "X"), ("T", "t"), "R"  # state letters in /proc/PID/stat
_USER_TICKS, _SYSTEM_TICKS = 11, 12  # fields there, after the state


@dataclass(frozen=True)
class ModelProcess:
    pid: int
    model: str


def stubs_of(server: int) -> list[tuple[int, list[bytes]]]:
    """(process id, command line) of the living model processes of a server."""
    return [(pid, arguments) for pid, arguments in _stubs() if arguments[STUB_PARENT] == b"%d" % server]


def end_orphans(prefix: str) -> None:
    """Kill the model processes of a dead keeper, whose shared memory has this prefix.

    They end themselves when their server dies, but one that is blocked inside the server's code needs half a minute for it
    (``triton/startup.py:end_when_useless``) and holds its GPU memory until then.
    """
    for pid, arguments in _stubs():
        if arguments[STUB_REGION].startswith(prefix.encode()):
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                os.kill(pid, signal.SIGKILL)


def _stubs() -> Iterator[tuple[int, list[bytes]]]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            arguments = path.read_bytes().split(b"\0")
            if arguments[0].endswith(STUB) and len(arguments) > STUB_CONTROL:
                yield int(path.parent.name), arguments


def model_of(arguments: list[bytes]) -> str:
    """From a stub's command line, which names ``<repository>/<model>/<version>/model.py``."""
    return Path(os.fsdecode(arguments[STUB_FILE])).parent.parent.name


def process_state(pid: int) -> str | None:
    """State letter of a process; ``None`` when it does not exist."""
    fields = _stat(pid)
    return fields[0] if fields else None


def processor_s(pid: int) -> float:
    """Processor time of all threads of a process since its start; 0 when it does not exist."""
    fields = _stat(pid)
    return sum(int(fields[place]) for place in (_USER_TICKS, _SYSTEM_TICKS)) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def _stat(pid: int) -> list[str]:
    """The fields of ``/proc/PID/stat`` from the state on; empty when the process does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


class ModelProcesses:
    """Those of one server, from ``find`` on. Used by one thread at a time; ``find`` may be called by another."""

    def __init__(self, server: int) -> None:
        """server: process id."""
        self._server = server
        self._living: dict[int, ModelProcess] = {}

    @property
    def living(self) -> tuple[ModelProcess, ...]:
        return tuple(self._living.values())

    def find(self) -> None:
        """Look for processes that have been started since. Reads the command line of every process of the host."""
        for pid, arguments in stubs_of(self._server):
            self._living.setdefault(pid, ModelProcess(pid, model_of(arguments)))

    def take_dead(self) -> list[ModelProcess]:
        """Those which have died since the last call."""
        states = {pid: process_state(pid) for pid in tuple(self._living)}
        return [self._living.pop(pid) for pid, state in states.items() if state is None or state in DEAD]
