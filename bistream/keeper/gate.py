"""The gate beside the server: started first, restarted alone when it dies or hangs, drained with the models, ended last.

A gate that leaves questions unanswered may only be busy: it is replaced when its event loop stands still (``hang_watch.BusyWatch``).
One thread owns the process, because the server's start and its probes may occupy the supervisor for minutes. A gate that is lost takes
its clients' sessions with it and nothing else. Used by ``supervisor``.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

from bistream.keeper.gate_process import GateProcess, ask_ready
from bistream.keeper.hang_watch import BusyWatch
from bistream.keeper.host import ServerError, url
from bistream.keeper.served_models import CLOSING_S
from bistream.keeper.server_process import Interrupted
from gateway.settings import GateSettings

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 0.1  # whether the process has ended, and while it is not ready, whether it is
ASK_INTERVAL_S = 1.0  # of a gate that is ready
ASK_TIMEOUT_S = 2.0
UNREADY_AFTER_S = 5.0  # without a heartbeat it takes no sessions, whatever it said before
LAST_WORDS_S = 3.0  # for one that seems to be dead, to show that it drains
CLOSE_TIMEOUT_S = 3.0  # for its last words to the clients
FIRST_DELAY_S, LONGEST_DELAY_S = 0.5, 30.0  # before a restart; the first one in a row has none
STABLE_AFTER_S = 60.0


def restart_delay_s(restarts: int) -> float:
    """restarts: how many there were in a row."""
    return 0.0 if restarts == 0 else min(FIRST_DELAY_S * 2.0 ** (restarts - 1), LONGEST_DELAY_S)


class Gate:
    """What the supervisor needs of a gate; as it is, there is none: clients reach Triton itself, and nobody can be kept from it.

    is_ready: whether it takes sessions. has_ended: whether no session can be left in it.
    """

    @property
    def is_ready(self) -> bool:
        return True

    @property
    def has_ended(self) -> bool:
        return True

    def hold(self) -> None:
        """It takes no sessions until ``release``, whatever the server says of itself."""

    def release(self) -> None:
        """The server works."""

    def drain(self) -> None:
        """It takes no new sessions and ends when the running ones have ended, or their time is up."""

    @contextlib.contextmanager
    def opened(self, should_stop: Callable[[], bool]) -> Iterator[None]:
        """Open for clients inside. Raises ``ServerError`` or ``Interrupted`` when it cannot be opened."""
        yield


class KeptGate(Gate):
    """make, ask, clock: for tests."""

    def __init__(
        self,
        settings: GateSettings,
        make: Callable[[GateSettings], GateProcess] = GateProcess,
        ask: Callable[[GateSettings, float], bool | None] = ask_ready,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings  # with the ports that it has, once it is open
        self._make = make
        self._ask = ask
        self._clock = clock
        self._process: GateProcess | None = None
        self._opening: Future[None] = Future()
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._is_ready = self._is_draining = self._is_closing = False

    @property
    def grpc_url(self) -> str:
        return url(self.settings.grpc.address, self.settings.grpc.port)

    @property
    def http_url(self) -> str:
        assert self.settings.http is not None
        return url(self.settings.http.address, self.settings.http.port)

    @property
    def is_ready(self) -> bool:
        return self._is_ready and not self._is_draining

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    def hold(self) -> None:
        if self._hold_file is not None:
            self._hold_file.touch()

    def release(self) -> None:
        if self._hold_file is not None:
            self._hold_file.unlink(missing_ok=True)

    @property
    def _hold_file(self) -> Path | None:
        return self.settings.upstream.hold_file

    @contextlib.contextmanager
    def opened(self, should_stop: Callable[[], bool]) -> Iterator[None]:
        thread = threading.Thread(target=self._keep, args=(should_stop,), name="bistream-gate", daemon=True)
        thread.start()
        try:
            self._opening.result()
            yield
        finally:
            self._is_closing = True
            self._wake.set()
            thread.join()

    def drain(self) -> None:
        self._is_draining = True
        if self._process is not None:
            self._process.ask_to_end()
        self._wake.set()

    # The thread

    def _keep(self, should_stop: Callable[[], bool]) -> None:
        try:
            process = self._start(should_stop)
        except Exception as error:
            self._ended.set()
            self._opening.set_exception(error)
            return
        self._opening.set_result(None)
        restarts = 0
        while True:
            started_at = self._clock()
            reason = self._watch(process)
            self._is_ready = False
            process.kill()
            if self._must_end():
                break
            if self._clock() - started_at > STABLE_AFTER_S:
                restarts = 0
            successor, restarts = self._replace(reason, restarts)
            if successor is None:
                break
            process = successor
        if self._is_draining and not self._is_closing and process.exit_code() != 0:
            logger.error("%s while it drained; the sessions in it are lost", reason)
        self._ended.set()

    def _must_end(self) -> bool:
        return self._is_draining or self._is_closing

    def _start(self, should_stop: Callable[[], bool]) -> GateProcess:
        process = self._make(self.settings)
        process.start(should_stop)
        self.settings = process.settings
        self._process = process
        if self._is_draining:  # came while it started
            process.ask_to_end()
        return process

    def _replace(self, reason: str, restarts: int) -> tuple[GateProcess | None, int]:
        """The next process, and the number of restarts in a row; ``None`` when none is wanted any more. It never gives up."""
        while True:
            delay_s = restart_delay_s(restarts)
            restarts += 1
            logger.error("%s; restarting the gate in %.1f s, the server goes on", reason.rstrip("."), delay_s)
            self._wake.wait(delay_s)
            if self._must_end():
                return None, restarts
            try:
                return self._start(self._must_end), restarts
            except Interrupted:
                return None, restarts
            except (ServerError, OSError, RuntimeError) as error:  # no file, process or thread to be had, for the moment
                reason = str(error)

    def _watch(self, process: GateProcess) -> str:
        """Returns why the process is of no use any more."""
        life = BusyWatch(LOOK_INTERVAL_S + ASK_INTERVAL_S + ASK_TIMEOUT_S, self._clock)
        answers, ask_at, give_up_at = 0, 0.0, float("inf")
        while process.exit_code() is None:
            now = self._clock()
            if self._is_closing:
                return self._close(process)
            if self._is_draining:
                give_up_at = min(give_up_at, now + self.settings.drain_timeout_s + CLOSING_S)
                if now > give_up_at:
                    return "The gate did not end in time"
                time.sleep(LOOK_INTERVAL_S)
                continue
            if not self._is_ready or now >= ask_at:
                ask_at = now + ASK_INTERVAL_S
                with contextlib.suppress(TimeoutError):  # it may be busy
                    self._note(self._ask(self.settings, ASK_TIMEOUT_S))
                    answers += 1
            vitals = process.vitals()
            reason = life.look(replace(vitals, beat=(vitals.beat, answers)))
            self._note_silence(life.silent_s)
            if reason is not None:
                self._end_silent(process)
                return f"The gate {reason}"
            self._wake.wait(LOOK_INTERVAL_S)
        return f"The gate ended by itself with exit code {process.exit_code()}"

    def _note(self, is_ready: bool | None) -> None:
        """A gate that asks for certificates answers the keeper no questions: its open doors must do."""
        if is_ready is not None:
            self._is_ready = is_ready
        elif self.settings.tls is not None and self.settings.tls.client_ca is not None:
            self._is_ready = True

    def _note_silence(self, silent_s: float) -> None:
        if silent_s >= UNREADY_AFTER_S and self._is_ready:
            logger.warning("the gate has given no sign of life for %.0f s", silent_s)
            self._is_ready = False

    def _end_silent(self, process: GateProcess) -> None:
        """Before it is killed. If its loop turns again after the signal, it drains, and its sessions have the time of any drain."""
        beat, asked_at = process.vitals().beat, self._clock()
        process.ask_to_end()
        give_up_at = asked_at + LAST_WORDS_S
        while process.exit_code() is None and not self._is_closing and self._clock() < give_up_at:
            if process.vitals().beat != beat:
                give_up_at = asked_at + self.settings.drain_timeout_s + CLOSING_S
            time.sleep(LOOK_INTERVAL_S)

    def _close(self, process: GateProcess) -> str:
        deadline = self._clock() + CLOSE_TIMEOUT_S
        while process.exit_code() is None and self._clock() < deadline:
            process.ask_to_end()
            time.sleep(LOOK_INTERVAL_S)
        return "The gate did not end at once"
