"""Keeps one Triton server running: starts and watches it, restarts it when a part has died, drains and stops it, leaving nothing behind.

A dead model process cannot be restarted alone, so the whole server is (its sessions are lost either way). When the first start
fails, the operator has to act: the supervisor ends with the reason. Called by ``scripts/serve.py``.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType

from bistream.keeper.host import ServerError
from bistream.keeper.probe import ProbeError, ProbeSchedule, probe
from bistream.keeper.server_process import Interrupted, ServerSettings, TritonServer, never
from bistream.keeper.start_failure import PortInUseError

logger = logging.getLogger(__name__)

WATCH_INTERVAL_S = 0.25
DRAIN_INTERVAL_S = 0.05
PORT_ATTEMPTS = 3
COMMAND_KILL_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class SupervisorSettings:
    """probe_interval_s: seconds between deep probes; 0: none after the start. max_restarts: in a row; the count is reset
    after ``stable_after_s`` of good health. drain_timeout_s: how long running sessions may continue after the first signal."""

    probe_interval_s: float = 15.0
    probe_timeout_s: float = 60.0
    max_restarts: int = 3
    stable_after_s: float = 600.0
    drain_timeout_s: float = 30.0


def start_server(settings: ServerSettings, probe_timeout_s: float, should_stop: Callable[[], bool] = never) -> TritonServer:
    """A server whose models have all answered. Raises ``ServerError`` or ``Interrupted``; nothing is left running then."""
    for attempt in range(PORT_ATTEMPTS):
        server = TritonServer(settings)
        try:
            server.start(should_stop)
        except PortInUseError:
            if settings.ports is not None or attempt + 1 == PORT_ATTEMPTS:
                raise
            continue
        try:
            probe(server.grpc_url, model_names(settings), probe_timeout_s, should_stop)
        except BaseException as error:
            server.stop(exit_timeout_s=0.0)
            if isinstance(error, ProbeError):
                raise ServerError(f"The server started, but {error}.") from None
            raise
        return server
    raise AssertionError("unreachable")


def model_names(settings: ServerSettings) -> list[str]:
    return sorted(path.parent.name for path in settings.model_repository.glob("*/config.pbtxt"))


class Supervisor:
    """Runs until a signal, an unrecoverable failure, or the end of the given command.

    on_ready: the server accepts sessions. on_unready: it no longer does; may be called twice. clock, pause: for tests.
    """

    def __init__(
        self,
        server_settings: ServerSettings,
        settings: SupervisorSettings,
        on_ready: Callable[[TritonServer], None] = lambda server: None,
        on_unready: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._server_settings = server_settings
        self._settings = settings
        self._on_ready = on_ready
        self._on_unready = on_unready
        self._clock = clock
        self._pause = pause
        self._stops = 0  # a counter without a lock: a signal handler interrupts the thread that it would wait for
        self._ready = False

    @property
    def is_ready(self) -> bool:
        """Whether the server takes new sessions."""
        return self._ready and not self._is_stopping()

    def stop(self) -> None:
        """The first call ends ``run`` once the running sessions have ended, the second at once. For signal handlers and any thread."""
        self._stops += 1

    def handle_signals(self) -> None:
        def handler(number: int, frame: FrameType | None) -> None:
            self.stop()

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, handler)

    def run(self) -> None:
        """Serve until ``stop``. Raises ``ServerError`` when the server cannot be started or dies too often, ``Interrupted`` in a start."""
        server, restarts = self._start(), 0
        while True:
            started_at = self._clock()
            try:
                self._announce(server)
                reason = self._watch(server)
                self._withdraw()
                if reason is None:
                    self._drain(server)
            finally:
                self._withdraw()
                server.stop(None if self._is_stopping() else 0.0, self._is_hurried)
            if reason is None:
                return
            if self._clock() - started_at > self._settings.stable_after_s:
                restarts = 0
            server, restarts = self._restart(reason, restarts)

    def _is_stopping(self) -> bool:
        return self._stops > 0

    def _is_hurried(self) -> bool:
        return self._stops > 1

    def _announce(self, server: TritonServer) -> None:
        self._ready = True
        self._on_ready(server)

    def _withdraw(self) -> None:
        self._ready = False
        self._on_unready()

    def _drain(self, server: TritonServer) -> None:
        """Returns when no session is left, the time is up, the server has failed, or at the second ``stop``."""
        try:
            drain = server.drain(self._settings.drain_timeout_s, self._clock)
        except OSError as error:
            logger.error("the drain could not be requested (%s); running sessions end now", error)
            return
        logger.info("draining: running sessions may continue for %.0f s", self._settings.drain_timeout_s)
        told = 0
        while not self._is_hurried() and not drain.is_over():
            reason = failure(server)
            if reason is not None:
                logger.error("%s; running sessions end now", reason)
                return
            left = drain.sessions_left
            if left != told:
                logger.info("draining: %d sessions left", left)
                told = left
            self._pause(DRAIN_INTERVAL_S)

    def _restart(self, reason: str, restarts: int) -> tuple[TritonServer, int]:
        """The new server and the number of restarts in a row. A failed start counts and is retried, as the server has started before."""
        while restarts < self._settings.max_restarts:
            restarts += 1
            logger.error("%s; restarting the server (%d of %d)", reason.rstrip("."), restarts, self._settings.max_restarts)
            try:
                return self._start(), restarts
            except ServerError as error:
                reason = str(error)
        raise ServerError(f"{reason.rstrip('.')}; giving up after {restarts} restarts.")

    def run_command(self, command: Callable[[TritonServer], Sequence[str]]) -> int:
        """Start the server, run one command alongside it, end both; returns the command's exit code.

        Raises ``ServerError`` when the server fails, ``Interrupted`` after ``stop``.
        """
        server = self._start()
        try:
            self._announce(server)
            with subprocess.Popen(list(command(server))) as process:
                try:
                    return self._wait_for(process, server)
                finally:
                    _end_process(process)
        finally:
            self._withdraw()
            server.stop(should_hurry=self._is_hurried)

    def _wait_for(self, process: subprocess.Popen[bytes], server: TritonServer) -> int:
        while True:
            try:
                return process.wait(WATCH_INTERVAL_S)
            except subprocess.TimeoutExpired:
                pass
            if self._is_stopping():
                raise Interrupted
            reason = failure(server)
            if reason is not None:
                raise ServerError(f"{reason}.")

    def _start(self) -> TritonServer:
        return start_server(self._server_settings, self._settings.probe_timeout_s, self._is_stopping)

    def _watch(self, server: TritonServer) -> str | None:
        """Returns why the server must be restarted, or ``None`` after ``stop``."""
        schedule = ProbeSchedule(self._settings.probe_interval_s)
        models = model_names(self._server_settings)
        while not self._is_stopping():
            reason = failure(server)
            if reason is not None:
                return reason
            if schedule.is_due():
                try:
                    probe(server.grpc_url, models, self._settings.probe_timeout_s, self._is_stopping)
                    schedule.record(True)
                except Interrupted:
                    return None
                except ProbeError as error:
                    logger.warning("a probe failed: %s", error)
                    if schedule.record(False):
                        return f"The server does not work: {error}"
            self._pause(WATCH_INTERVAL_S)
        return None


def failure(server: TritonServer) -> str | None:
    """A failure that is visible without a request to the server, or ``None``."""
    code = server.exit_code()
    if code is not None:
        return f"The server ended by itself with exit code {code}"
    if server.dead_models():
        return "The process of a model has died"
    return None


def _end_process(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(COMMAND_KILL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
