"""What the process table says of the model processes (stubs) of a server: which exist, which model each one serves, how each one is."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

STUB = b"triton_python_backend_stub"
STUB_FILE, STUB_REGION, STUB_PARENT, STUB_CONTROL = 1, 2, 5, 7  # indices into the stub's command line
DEAD, STOPPED = ("Z", "X"), ("T", "t")  # state letters in /proc/PID/stat


def stubs_of(server: int) -> list[tuple[int, list[bytes]]]:
    """(process id, command line) of the living model processes of a server. Reads the command line of every process of the host."""
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
    fields = stat_fields(pid)
    return fields[0] if fields else None


def stat_fields(pid: int) -> list[str]:
    """The fields of ``/proc/PID/stat`` from the state on; empty when the process does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
