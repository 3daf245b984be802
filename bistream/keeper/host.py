"""What the server requires of the host and finds on it: libpython, ports, processes.

Imports nothing that must be installed: ``scripts/setup_triton.py`` runs it before anything is.
"""

from __future__ import annotations

import ctypes
import errno
import http.client
import random
import signal
import socket
import subprocess
import sys
import sysconfig
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from bistream.processes.signals import stop_signals

SHARED_MEMORY = Path("/dev/shm")
LOOPBACK = "127.0.0.1"
KILL_AFTER_S = 5.0
_PORTS = (10_000, 60_000)
_PORT_ATTEMPTS = 100
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


class ServerError(Exception):
    """The server cannot start or has died; the message is for the operator."""


class GoldenError(ServerError):
    """The server answers, but does not speak as it should."""


def handle_stop_signals(stop: Callable[[], None]) -> None:
    """Have ``stop_signals`` call ``stop``. From the main thread."""
    for number in stop_signals():
        signal.signal(number, lambda number, frame: stop())


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


def check_free(wanted: Iterable[tuple[str, int]]) -> None:
    """Raises ``ServerError`` that names the first port in use. wanted: address and port."""
    for address, port in wanted:
        if not is_free(address, port):
            raise ServerError(f"Port {port} is in use; stop the program that uses it or choose another port.")


def free_ports(count: int, others: Collection[int | None] = ()) -> range:
    """Free ones in a row on loopback. others: wanted elsewhere. Raises ``ServerError`` where there are none.

    They lie below those that the system gives to connections, where it can be avoided: one of them could be given away before a server
    listens there, or while it is restarted, even to the gate that tries to reach it, which would then talk to itself.
    """
    lowest, highest = _PORTS
    ephemeral = int(_EPHEMERAL.read_text(encoding="ascii").split()[0])
    if ephemeral > lowest + _PORT_ATTEMPTS:
        highest = min(highest, ephemeral)
    for _ in range(_PORT_ATTEMPTS):
        first = random.randrange(lowest, highest - count)
        ports = range(first, first + count)
        if not set(ports) & set(others) and all(is_free(LOOPBACK, port) for port in ports):
            return ports
    raise ServerError(f"There are no {count} free ports in a row; give the ports.")


def reachable(address: str) -> str:
    """The address under which this host reaches a server that listens there."""
    return {"0.0.0.0": "127.0.0.1", "*": "127.0.0.1", "::": "::1"}.get(address, address)


def url(address: str, port: int) -> str:
    """``HOST:PORT`` for a client on this host."""
    host = reachable(address)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def fetch(address: str, path: str, timeout_s: float) -> tuple[int, str] | None:
    """Status and text of an HTTP server on this host; ``None`` when it does not answer. address: ``HOST:PORT``."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=timeout_s) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        error.close()
        return error.code, ""
    except (OSError, http.client.HTTPException):
        return None


def end_process(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, and SIGKILL if that has not ended it in time. Nothing for a process that has ended."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(KILL_AFTER_S)
        except subprocess.TimeoutExpired:
            process.kill()
