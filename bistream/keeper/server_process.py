"""One tritonserver process and everything that belongs to it: process group, ports, log, shared memory.

The server needs a keeper. It hangs instead of failing when a model's process cannot start, does not exit while a client's stream is open,
and leaves model processes and shared-memory files behind when it is killed. ``TritonServer`` gives it a process group and a
shared-memory prefix of its own, a start deadline, and a ``stop`` after which nothing is left. Used by ``supervisor`` and by tests.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from bistream.control_files import CONTROL_VARIABLE
from bistream.keeper.drain import Drain
from bistream.keeper.host import (
    DIE_WITH_PARENT,
    SHARED_MEMORY,
    ServerError,
    is_free,
    library_directories,
    process_states,
    remove_abandoned_shared_memory,
    remove_shared_memory,
    shared_memory_prefix,
)
from bistream.keeper.start_failure import PortInUseError, start_failure
from bistream.keeper.stub_pulse import StubPulse

# APIs that let a client read or replace parts of the server; restricted by a random key that is never given out.
RESTRICTED_APIS = "shared-memory,model-repository,trace,logging"
SPARE_BACKEND_THREADS = 32
POLL_INTERVAL_S = 0.05
KILL_TIMEOUT_S = 10.0
_MAX_SESSIONS = re.compile(r'key: "max_sessions" value { string_value: "(\d+)" }')


class Interrupted(Exception):
    """Starting or waiting was aborted because the keeper was asked to stop."""


def never() -> bool:
    return False


@dataclass(frozen=True)
class Ports:
    http: int
    grpc: int
    metrics: int


@dataclass(frozen=True)
class ServerSettings:
    """How to start one server. ``ports`` None: three free ports are chosen at each start.

    executable: the tritonserver binary. backend_directory: holds ``python/`` with the backend and its stub (scripts/setup_triton.py).
    python_prefix: the environment whose packages the models use. exit_timeout_s: how long a server without sessions may take to exit.
    """

    model_repository: Path
    executable: Path
    backend_directory: Path
    python_prefix: Path = Path(sys.prefix)
    ports: Ports | None = None
    http_address: str = "127.0.0.1"
    grpc_address: str = "127.0.0.1"
    start_timeout_s: float = 600.0
    exit_timeout_s: float = 10.0
    log_path: Path | None = None  # None: the keeper's stderr
    extra_arguments: tuple[str, ...] = ()


def free_ports() -> Ports:
    """Three different ports that were free a moment ago. All are held until the last is chosen."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return Ports(*(one.getsockname()[1] for one in sockets))


def backend_threads(model_repository: Path) -> int:
    """Size of the server's thread pool for each model process; its default is 32.

    A call to a sibling occupies a thread until it is answered, and a session has two such calls pending (tokens, hop): with fewer
    threads, audio and text would stall.
    """
    texts = [path.read_text(encoding="utf-8") for path in model_repository.glob("*/config.pbtxt")]
    limits = [int(match[1]) for text in texts for match in _MAX_SESSIONS.finditer(text)]
    return 2 * max(limits, default=0) + SPARE_BACKEND_THREADS


class TritonServer:
    """``start`` once, ``stop`` once (idempotent). Must be started from a thread that lives as long as the server."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.ports = settings.ports or free_ports()
        self._prefix = shared_memory_prefix()
        self._control = SHARED_MEMORY / f"{self._prefix}control"
        self._process: subprocess.Popen[str] | None = None
        self._tail: deque[str] = deque(maxlen=200)
        self._pump: threading.Thread | None = None
        self._pulse: StubPulse | None = None

    @property
    def grpc_url(self) -> str:
        return f"{_reachable(self.settings.grpc_address)}:{self.ports.grpc}"

    @property
    def http_url(self) -> str:
        return f"{_reachable(self.settings.http_address)}:{self.ports.http}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, should_stop: Callable[[], bool] = never) -> None:
        """Returns when every model is loaded. Raises ``ServerError``, or ``Interrupted``; nothing is left running then."""
        remove_abandoned_shared_memory()
        self._check_ports()
        environment = self._environment()
        log = self._open_log()
        self._control.mkdir(mode=0o700)
        self._process = subprocess.Popen(
            [sys.executable, "-c", DIE_WITH_PARENT, *self._command()],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
            encoding="utf-8",
            errors="backslashreplace",
        )
        self._pump = threading.Thread(target=self._copy_log, args=(log,), name="triton-log", daemon=True)
        self._pump.start()
        self._pulse = StubPulse(self.pid)
        self._pulse.start()
        try:
            self._wait_until_ready(should_stop)
            self._pulse.settle()
        except BaseException:
            self.stop(exit_timeout_s=0.0)
            raise

    def exit_code(self) -> int | None:
        assert self._process is not None
        return self._process.poll()

    def dead_models(self) -> int:
        """Model processes that have died. Triton neither restarts nor reports them: readiness stays 200."""
        return sum(1 for parent, state in process_states() if parent == self.pid and state == "Z")

    def log_tail(self, lines: int = 20) -> str:
        return "".join(list(self._tail)[-lines:])

    def drain(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> Drain:
        """Make the models refuse new sessions and finish running ones. Raises ``OSError`` when the request cannot be written."""
        drain = Drain(self._control, timeout_s, clock)
        drain.start()
        return drain

    def stop(self, exit_timeout_s: float | None = None, should_hurry: Callable[[], bool] = never) -> None:
        """SIGTERM, wait for the server to exit, kill the whole process group, remove the shared memory.

        After the signal the models no longer serve each other, which ends running sessions: call ``drain`` first.
        """
        process = self._process
        if process is None:
            return
        if self._pulse is not None:
            self._pulse.stop()
        timeout_s = self.settings.exit_timeout_s if exit_timeout_s is None else exit_timeout_s
        if process.poll() is None and timeout_s > 0 and not should_hurry():
            process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + timeout_s
            while process.poll() is None and time.monotonic() < deadline and not should_hurry():
                time.sleep(POLL_INTERVAL_S)
        self._kill_group()
        process.wait()
        if self._pump is not None:
            self._pump.join(KILL_TIMEOUT_S)
        remove_shared_memory(self._prefix)

    def _kill_group(self) -> None:
        """Model processes are in the server's group; some outlive it."""
        deadline = time.monotonic() + KILL_TIMEOUT_S
        while time.monotonic() < deadline:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                return
            self.exit_code()  # reaps the server
            time.sleep(POLL_INTERVAL_S)

    def _check_ports(self) -> None:
        """Another server on one of our ports would answer our requests. Raises ``PortInUseError`` naming the port."""
        http, grpc, ports = self.settings.http_address, self.settings.grpc_address, self.ports
        for address, port in ((http, ports.http), (grpc, ports.grpc), (http, ports.metrics)):
            if not is_free(address, port):
                raise PortInUseError(f"Port {port} is in use; stop the program that uses it or choose another port.")

    def _command(self) -> list[str]:
        settings, ports = self.settings, self.ports
        key = secrets.token_hex(16)
        return [
            str(settings.executable),
            f"--model-repository={settings.model_repository}",
            f"--backend-directory={settings.backend_directory}",
            "--disable-auto-complete-config",  # otherwise every model is imported twice
            f"--backend-config=python,shm-region-prefix-name={self._prefix}",
            f"--backend-config=python,stub-timeout-seconds={int(settings.start_timeout_s) + 1}",
            f"--backend-config=python,thread-pool-size={backend_threads(settings.model_repository)}",
            f"--exit-timeout-secs={max(1, int(settings.exit_timeout_s))}",
            f"--http-address={settings.http_address}",
            f"--grpc-address={settings.grpc_address}",
            f"--http-port={ports.http}",
            f"--grpc-port={ports.grpc}",
            f"--metrics-port={ports.metrics}",
            f"--http-restricted-api={RESTRICTED_APIS}:admin-key={key}",
            f"--grpc-restricted-protocol={RESTRICTED_APIS}:admin-key={key}",
            "--grpc-keepalive-time=10000",  # detects a vanished client host in 15 s; the default is 2 h
            "--grpc-keepalive-timeout=5000",
            "--grpc-http2-max-pings-without-data=0",
            *settings.extra_arguments,
        ]

    def _environment(self) -> dict[str, str]:
        """The stub takes its Python packages from the first python3 on PATH, and its libpython from the loader."""
        path = f"{self.settings.python_prefix / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        environment = {**os.environ, "PATH": path, CONTROL_VARIABLE: str(self._control)}
        directories = library_directories()
        if directories:
            environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [*directories, os.environ.get("LD_LIBRARY_PATH")]))
        return environment

    def _open_log(self) -> TextIO:
        path = self.settings.log_path
        if path is None:
            return sys.stderr
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return path.open("a", encoding="utf-8")
        except OSError as error:
            raise ServerError(f"The server's log {path} cannot be written ({error.strerror}); choose another file.") from None

    def _copy_log(self, target: TextIO) -> None:
        assert self._process is not None and self._process.stdout is not None
        with self._process.stdout:
            for line in self._process.stdout:
                self._tail.append(line)
                with contextlib.suppress(OSError):  # disk full, reader gone: a server whose output is not read would block
                    target.write(line)
                    target.flush()
        if target is not sys.stderr:
            with contextlib.suppress(OSError):
                target.close()

    def _wait_until_ready(self, should_stop: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self.settings.start_timeout_s
        while not _is_ready(self.http_url):
            if self.exit_code() is not None:
                assert self._pump is not None
                self._pump.join(KILL_TIMEOUT_S)
                raise start_failure("".join(self._tail), self.exit_code())
            if should_stop():
                raise Interrupted
            if time.monotonic() > deadline:
                raise ServerError(
                    f"The server was not ready after {self.settings.start_timeout_s:.0f} s; its log ends with:\n{self.log_tail()}"
                )
            time.sleep(POLL_INTERVAL_S)


def _is_ready(http_url: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{http_url}/v2/health/ready", timeout=2.0) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _reachable(address: str) -> str:
    return "127.0.0.1" if address in ("0.0.0.0", "::", "*") else address
