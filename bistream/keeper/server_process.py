"""One tritonserver process and everything that belongs to it: process group, ports, log, shared memory.

The server needs a keeper. It hangs instead of failing when a model's process cannot start, does not exit while a client's stream is open,
and leaves model processes and shared-memory files behind when it is killed. ``TritonServer`` gives it a process group and a
shared-memory prefix of its own, a start deadline, and a ``stop`` after which nothing is left. Used by ``supervisor`` and by tests.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bistream.keeper.child import OutputCopy, spawn, to_stderr
from bistream.keeper.host import ServerError, check_free, free_ports, library_directories, url
from bistream.keeper.model_control import ADMIN_KEY, CONTROL_ARGUMENTS, ModelControl, hide_argument, is_ready
from bistream.keeper.served_models import Ending, ServedModels
from bistream.keeper.server_log import LogFile, start_failure
from bistream.keeper.shared_memory import SharedMemoryClaim, sweep_shared_memory
from bistream.processes.control_files import CONTROL_VARIABLE, LONGEST_STOP_S, Order
from bistream.store.findings import STATE_VARIABLE

METRICS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"  # prometheus_client's: where the models count
RESTRICTED_APIS = "shared-memory,model-repository,trace,logging"
MODEL_LOAD_THREADS = 8  # all models at once; by default four, and token2wav, which takes longest, would wait for one of them
PRIVATE_UMASK = 0o077  # of the server and its models: their shared memory holds texts and audio
# Of a ping, and (as TCP_USER_TIMEOUT) of a connection whose other end takes nothing: a gate that is stopped while audio fills its buffers.
KEEPALIVE_TIMEOUT_MS = int(1000 * (LONGEST_STOP_S + 8.0))
POLL_INTERVAL_S, START_POLL_INTERVAL_S = 0.05, 0.1
KILL_TIMEOUT_S = 10.0
LOG_TAIL_LINES = 20


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
    exit_timeout_s: how long a server without sessions may take to exit.
    """

    model_repository: Path
    executable: Path
    backend_directory: Path
    ports: Ports | None = None
    http_address: str = "127.0.0.1"
    grpc_address: str = "127.0.0.1"
    start_timeout_s: float = 600.0
    exit_timeout_s: float = 10.0
    log_path: Path | None = None  # None: the keeper's stderr
    on_log_line: Callable[[str], None] = lambda line: None  # sees every line of the log
    state_directory: Path | None = None  # where models keep what later starts need not find out again; None: nowhere


class TritonServer:
    """``start`` once, ``stop`` once (idempotent). Must be started from a thread that lives as long as the server."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.ports = settings.ports or Ports(*free_ports(3))
        self._claim: SharedMemoryClaim | None = None
        self._process: subprocess.Popen[str] | None = None
        self._file: LogFile | None = None
        self._output: OutputCopy | None = None
        self._models: ServedModels | None = None
        self._key = secrets.token_hex(16)

    @property
    def grpc_url(self) -> str:
        return url(self.settings.grpc_address, self.ports.grpc)

    @property
    def http_url(self) -> str:
        return url(self.settings.http_address, self.ports.http)

    @property
    def control_directory(self) -> Path:
        """Of the files in ``control_files`` and of the models' metrics; removed by ``stop``."""
        assert self._claim is not None, "the server was not started"
        return self._claim.control

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, should_stop: Callable[[], bool] = never, clock: Callable[[], float] = time.monotonic) -> None:
        """Returns when every model is loaded. Raises ``ServerError``, or ``Interrupted``; nothing is left running then."""
        sweep_shared_memory()
        http, grpc, ports = self.settings.http_address, self.settings.grpc_address, self.ports
        check_free(((http, ports.http), (grpc, ports.grpc), (http, ports.metrics)))  # another server there would answer our requests
        libraries = library_directories()
        self._file = LogFile(self.settings.log_path) if self.settings.log_path is not None else None
        try:
            self._claim = SharedMemoryClaim()
            try:
                self._process = spawn(self._command(self._claim), env=self._environment(self._claim, libraries), umask=PRIVATE_UMASK)
                self._output = OutputCopy(self._process, self._take_line)
                control = ModelControl(self.http_url, self._key, self.settings.start_timeout_s)
                self._models = ServedModels(control, self.pid, self.control_directory)
            except (OSError, RuntimeError) as error:  # RuntimeError: no thread
                raise ServerError(f"The server's process cannot be started ({error}); see the limits in docs/operations.md.") from None
            self._wait_until_ready(self._output, self._models, should_stop, clock)
        except BaseException:
            self.stop(exit_timeout_s=0.0)
            raise

    def _take_line(self, line: str) -> None:
        self.settings.on_log_line(line)
        (self._file.write if self._file is not None else to_stderr)(line)

    def exit_code(self) -> int | None:
        assert self._process is not None
        return self._process.poll()

    @property
    def models(self) -> ServedModels:
        """Of a server that has started."""
        assert self._models is not None
        return self._models

    def log_tail(self) -> str:
        return "" if self._output is None else self._output.tail(LOG_TAIL_LINES)

    def end_sessions(self, order: Order, clock: Callable[[], float] = time.monotonic) -> Ending:
        """Make the models refuse new sessions and end the running ones as ordered. Raises ``OSError`` when the order cannot be written."""
        return Ending(self.control_directory, order, clock)

    def stop(self, exit_timeout_s: float | None = None, should_hurry: Callable[[], bool] = never) -> None:
        """SIGTERM, wait for the server to exit, kill the whole process group, remove the shared memory.

        After the signal the models no longer serve each other, which ends running sessions: call ``end_sessions`` first.
        """
        process = self._process
        if process is not None:
            self._end(process, self.settings.exit_timeout_s if exit_timeout_s is None else exit_timeout_s, should_hurry)
        if self._file is not None:
            self._file.close()
        if self._claim is not None:
            self._claim.release()

    def _end(self, process: subprocess.Popen[str], timeout_s: float, should_hurry: Callable[[], bool]) -> None:
        if self._models is not None:
            self._models.stop()
        if process.poll() is None and timeout_s > 0 and not should_hurry():
            process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + timeout_s
            while process.poll() is None and time.monotonic() < deadline and not should_hurry():
                time.sleep(POLL_INTERVAL_S)
        self._kill_group()
        process.wait()
        if self._output is not None:
            self._output.join()

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

    def _command(self, claim: SharedMemoryClaim) -> list[str]:
        settings, ports = self.settings, self.ports
        key = f"{RESTRICTED_APIS}:{ADMIN_KEY}={self._key}"
        return [
            str(settings.executable),
            f"--model-repository={settings.model_repository}",
            f"--backend-directory={settings.backend_directory}",
            "--disable-auto-complete-config",  # otherwise every model is imported twice
            f"--backend-config=python,shm-region-prefix-name={claim.prefix}",
            f"--backend-config=python,stub-timeout-seconds={int(settings.start_timeout_s) + 1}",
            f"--model-load-thread-count={MODEL_LOAD_THREADS}",
            f"--exit-timeout-secs={max(1, int(settings.exit_timeout_s))}",
            f"--http-address={settings.http_address}",
            f"--grpc-address={settings.grpc_address}",
            f"--http-port={ports.http}",
            f"--grpc-port={ports.grpc}",
            f"--metrics-address={settings.http_address}",  # otherwise an address of the build's choice
            f"--metrics-port={ports.metrics}",
            f"--http-restricted-api={key}",
            f"--grpc-restricted-protocol={key}",
            *CONTROL_ARGUMENTS,
            "--grpc-keepalive-time=10000",  # detects a vanished client host in half a minute; the default is 2 h
            f"--grpc-keepalive-timeout={KEEPALIVE_TIMEOUT_MS}",
            "--grpc-http2-max-pings-without-data=0",
        ]

    def _environment(self, claim: SharedMemoryClaim, libraries: list[str]) -> dict[str, str]:
        """The stub takes its Python packages from the first python3 on PATH, and its libpython from the loader."""
        path = f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        environment = {**os.environ, "PATH": path, CONTROL_VARIABLE: str(claim.control), METRICS_VARIABLE: str(claim.control)}
        if self.settings.state_directory is not None:
            environment[STATE_VARIABLE] = str(self.settings.state_directory)
        if libraries:
            environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [*libraries, os.environ.get("LD_LIBRARY_PATH")]))
        return environment

    def _wait_until_ready(
        self, output: OutputCopy, models: ServedModels, should_stop: Callable[[], bool], clock: Callable[[], float]
    ) -> None:
        deadline, is_hidden = clock() + self.settings.start_timeout_s, False
        while not is_ready(self.http_url):
            models.find()
            if not is_hidden and output.tail(1):  # it logs, so it has read its arguments
                is_hidden = hide_argument(self.pid, self._key) or self.exit_code() is None
            if self.exit_code() is not None:
                output.join()
                raise start_failure(output.tail(), self.exit_code())
            if should_stop():
                raise Interrupted
            if clock() > deadline:
                timeout_s = self.settings.start_timeout_s
                raise ServerError(f"The server was not ready after {timeout_s:.0f} s; its log ends with:\n{self.log_tail()}")
            time.sleep(START_POLL_INTERVAL_S)
        models.find()  # the last one
