"""Keeps one Triton server running: starts and watches it, restarts it when a part has failed, drains and stops it, leaving nothing behind.

What must be restarted is decided by ``server_watch``, how soon by ``restart_policy``. Before a restart the sessions are told. When the
first start fails, the operator has to act: the supervisor ends with the reason. A server that has run once is never given up: beyond its
budget of restarts it is restarted once a minute, and the log and the health port say so. Called by ``scripts/serve.py``.
"""

from __future__ import annotations

import contextlib
import logging
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bistream.config import SERVER_DRAIN_TIMEOUT_S
from bistream.keeper.gate import Gate
from bistream.keeper.hangs import HANG_TIMEOUT_S, Hangs
from bistream.keeper.host import GoldenError, ServerError, end_process, handle_stop_signals
from bistream.keeper.repository import model_names
from bistream.keeper.restart_policy import RestartLimits, RestartPolicy
from bistream.keeper.server_process import Interrupted, ServerSettings, TritonServer
from bistream.keeper.server_start import Verify, probe_all, start_server, verify_nothing
from bistream.keeper.server_watch import Fault, ServerWatch
from bistream.processes.control_files import Order

logger = logging.getLogger(__name__)

WATCH_INTERVAL_S = 0.25
DRAIN_INTERVAL_S = 0.05
LAST_WORDS_S = 0.3  # for the server to write what the front models have sent


@dataclass(frozen=True)
class SupervisorSettings:
    """probe_interval_s: seconds between deep probes; 0: none after the start. max_restarts: within ten minutes, before they become
    slow (``RestartLimits``); 0: end with the reason when the server fails. drain_timeout_s: how long running sessions may continue
    after the first signal. hang_timeout_s: how long a process may give no sign of life; 0: for ever."""

    probe_interval_s: float = 15.0
    probe_timeout_s: float = 60.0
    max_restarts: int = RestartLimits.budget
    hang_timeout_s: float = HANG_TIMEOUT_S
    drain_timeout_s: float = SERVER_DRAIN_TIMEOUT_S


class Supervisor:
    """Runs until a signal, an unrecoverable failure, or the end of the given command.

    on_ready: the server accepts sessions. on_unready: it no longer does; may be called twice. gate: in front of it. verify: before it is
    ready. clock, pause: for tests.
    """

    def __init__(
        self,
        server_settings: ServerSettings,
        settings: SupervisorSettings,
        on_ready: Callable[[TritonServer], None] = lambda server: None,
        on_unready: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
        gate: Gate | None = None,
        verify: Verify = verify_nothing,
    ) -> None:
        self._server_settings = server_settings
        self._settings = settings
        self._on_ready = on_ready
        self._on_unready = on_unready
        self._clock = clock
        self._pause = pause
        self._gate = gate or Gate()
        self._verify = verify
        self._stops = 0  # a counter without a lock: a signal handler interrupts the thread that it would wait for
        self._ready = False
        self._state = "The server starts."
        self.current_server: TritonServer | None = None  # the one that served last
        self.restarts = 0  # since the keeper started
        self._limits = RestartLimits(budget=settings.max_restarts)
        self._policy = RestartPolicy(self._limits, clock)

    @property
    def state(self) -> str:
        """One sentence for whoever asks why the server is not ready."""
        return "The server is shutting down." if self._is_stopping() else self._state

    @property
    def is_ready(self) -> bool:
        """Whether the server takes new sessions."""
        return self._ready and self._gate.is_ready and not self._is_stopping()

    def open_gate(self) -> contextlib.AbstractContextManager[None]:
        """For a ``with`` around ``run`` or ``run_command``. Raises ``ServerError`` or ``Interrupted`` when it cannot be opened."""
        return self._gate.opened(self._is_stopping)

    def stop(self) -> None:
        """The first call ends ``run`` once the running sessions have ended, the second at once. For signal handlers and any thread."""
        self._stops += 1

    def handle_signals(self) -> None:
        handle_stop_signals(self.stop)

    def run(self) -> None:
        """Serve until ``stop``. Raises ``ServerError`` when the server cannot be started at first, ``Interrupted`` in a start."""
        try:
            server = self._start()
        except GoldenError as error:  # the command line is not at fault: the health port says why it is not ready, and it is tried again
            server = self._restart(str(error))
        while (reason := self._serve(server)) is not None:
            server = self._restart(reason)

    def run_command(self, command: Callable[[TritonServer], Sequence[str]]) -> int:
        """Start the server, run one command alongside it, end both; returns the command's exit code.

        Raises ``ServerError`` when the server fails, ``Interrupted`` after ``stop``.
        """
        server = self._start()
        with self._watched(server) as watch:
            self._work_until(lambda: self._ready, server, watch)
            with subprocess.Popen(list(command(server))) as process:
                try:
                    self._work_until(lambda: process.poll() is not None, server, watch)
                finally:
                    end_process(process)
            return process.returncode

    def _is_stopping(self) -> bool:
        return self._stops > 0

    def _is_hurried(self) -> bool:
        return self._stops > 1

    def _start(self) -> TritonServer:
        self._gate.hold()
        server = start_server(self._server_settings, self._settings.probe_timeout_s, self._is_stopping, self._verify)
        self._gate.release()
        return server

    @contextlib.contextmanager
    def _watched(self, server: TritonServer) -> Iterator[ServerWatch]:
        """The server is stopped afterwards, at once where a fault was found."""
        settings, models = self._settings, model_names(self._server_settings.model_repository)

        def probe(should_stop: Callable[[], bool]) -> None:
            probe_all(server.grpc_url, models, settings.probe_timeout_s, should_stop)

        hangs = Hangs(server, settings.hang_timeout_s, self._clock) if settings.hang_timeout_s > 0 else None
        watch = ServerWatch(server, probe, settings.probe_interval_s, self._clock, hangs)
        try:
            yield watch
        finally:
            watch.stop()
            self._withdraw()
            server.stop(0.0 if watch.fault is not None and not self._is_stopping() else None, self._is_hurried)

    def _serve(self, server: TritonServer) -> str | None:
        """Returns why the server must be restarted, or ``None`` after ``stop``."""
        with self._watched(server) as watch:
            fault = None
            while fault is None and not self._is_stopping():
                if (fault := self._look(server, watch)) is None:
                    self._pause(WATCH_INTERVAL_S)
            self._withdraw()
            if fault is None:
                self._drain(server, watch)
                return None
            self._tell(server, fault)
            return fault.reason

    def _work_until(self, is_done: Callable[[], bool], server: TritonServer, watch: ServerWatch) -> None:
        """Raises ``ServerError`` and ``Interrupted``."""
        while not is_done():
            if self._is_stopping():
                raise Interrupted
            if (fault := self._look(server, watch)) is not None:
                raise ServerError(f"{fault.reason}.")
            self._pause(DRAIN_INTERVAL_S)

    def _look(self, server: TritonServer, watch: ServerWatch) -> Fault | None:
        """What is announced follows the gate's doors while the server works."""
        fault = watch.look()
        if fault is None and self._gate.is_ready is not self._ready:
            if self._ready:
                self._withdraw()
            else:
                self._announce(server)
        return fault

    def _announce(self, server: TritonServer) -> None:
        self._ready = True
        self._state = "The server is ready."
        self.current_server = server
        self._on_ready(server)

    def _withdraw(self) -> None:
        self._ready = False
        self._on_unready()

    def _drain(self, server: TritonServer, watch: ServerWatch) -> None:
        """Returns when no session is left, the time is up, the server has failed, or at the second ``stop``."""
        self._gate.drain()
        try:
            drain = server.end_sessions(Order(self._settings.drain_timeout_s), self._clock)
        except OSError as error:
            logger.error("the drain could not be requested (%s); running sessions end now", error)
            return
        logger.info("draining: running sessions may continue for %.0f s", self._settings.drain_timeout_s)
        told = 0
        while not self._is_hurried() and not (drain.is_over() and self._gate.has_ended):
            if (fault := watch.look()) is not None:
                return self._tell(server, fault)
            left = drain.sessions_left
            if left != told:
                logger.info("draining: %d sessions left", left)
                told = left
            self._pause(DRAIN_INTERVAL_S)
        return None

    def _tell(self, server: TritonServer, fault: Fault) -> None:
        """Give every session its error before the server is killed; returns when all have one, or the time is up."""
        logger.error("%s; running sessions end now", fault.reason.rstrip("."))
        if fault.is_mute or server.exit_code() is not None:
            return
        try:
            notice = server.end_sessions(Order(fault.patience_s, fault.model), self._clock)
        except OSError as error:
            logger.error("the sessions could not be told (%s)", error)
            return
        while not self._is_hurried() and not notice.is_over() and server.exit_code() is None:
            self._pause(DRAIN_INTERVAL_S)
        self._pause(LAST_WORDS_S)

    def _restart(self, reason: str) -> TritonServer:
        """The new server. A failed start counts and is retried for ever: the server has started before. ``Interrupted`` after ``stop``."""
        while self._settings.max_restarts > 0:
            delay_s = self._policy.record_failure()
            self.restarts += 1
            self._say_delay(reason.rstrip("."), delay_s)
            until = self._clock() + delay_s
            while not self._is_stopping() and (left := until - self._clock()) > 0:
                self._pause(min(WATCH_INTERVAL_S, left))
            if self._is_stopping():
                raise Interrupted
            try:
                return self._start()
            except ServerError as error:
                reason = str(error)
        raise ServerError(f"{reason.rstrip('.')}; giving up after 0 restarts.")

    def _say_delay(self, reason: str, delay_s: float) -> None:
        self._state = f"{reason}; the server is restarted in {delay_s:.0f} s."
        if not self._policy.is_exhausted:
            logger.error("%s; restarting the server in %.0f s (failure %d)", reason, delay_s, self._policy.failures)
            return
        self._state = (
            f"{reason}; it has failed {self._policy.failures} times within {self._limits.window_s / 60.0:.0f} minutes and is "
            f"restarted only every {delay_s:.0f} s: look for the cause in the log."
        )
        logger.critical("%s", self._state)
