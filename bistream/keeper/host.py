"""What the server requires of the host and leaves behind on it: libpython, ports, processes, shared-memory files.

Imports only the standard library, because ``scripts/setup_triton.py`` runs it before anything is installed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import secrets
import shutil
import socket
import sys
import sysconfig
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
SHARED_MEMORY_NAME = "bistream_"  # followed by the process id of the keeper
# Code for ``python -c``: prctl(PR_SET_PDEATHSIG, SIGKILL), then exec the given program, so that it cannot outlive its keeper.
DIE_WITH_PARENT = "import ctypes,os,sys; ctypes.CDLL(None).prctl(1,9); os.execv(sys.argv[1],sys.argv[1:])"


class ServerError(Exception):
    """The server cannot start or has died; the message is for the operator."""


def library_directories() -> list[str]:
    """Where the stub finds the libpython of this interpreter; empty when the loader finds it by itself.

    Raises ``ServerError`` with the command that installs it.
    """
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    name = f"libpython{version}.so.1.0"
    own = sysconfig.get_config_var("LIBDIR")
    if own and (Path(own) / name).is_file():
        return [own]
    try:
        ctypes.CDLL(name)
    except OSError:
        raise ServerError(
            f"{name} is not installed, and Triton's Python backend needs it; run: apt-get install -y libpython{version}"
        ) from None
    return []


def is_free(address: str, port: int) -> bool:
    """Whether a server could listen there. Connections of an earlier server that are still closing do not matter."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("" if address == "*" else address, port))
        except OSError as error:
            return error.errno != errno.EADDRINUSE
    return True


def shared_memory_prefix() -> str:
    """Name prefix of one server's shared-memory files."""
    return f"{SHARED_MEMORY_NAME}{os.getpid()}_{secrets.token_hex(4)}_"


def process_states() -> list[tuple[int, str]]:
    """(parent pid, state letter) of every process."""
    states = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            states.append((int(fields[1]), fields[0]))
    return states


def remove_shared_memory(prefix: str, directory: Path = SHARED_MEMORY) -> None:
    for path in directory.glob(f"{prefix}*"):
        _remove(path)


def remove_abandoned_shared_memory(directory: Path = SHARED_MEMORY) -> None:
    """Delete the files of servers whose keeper (its process id is in the name) no longer exists."""
    for path in directory.glob(f"{SHARED_MEMORY_NAME}*"):
        number = path.name.removeprefix(SHARED_MEMORY_NAME).partition("_")[0]
        if number.isdigit() and not Path(f"/proc/{number}").exists():
            _remove(path)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
