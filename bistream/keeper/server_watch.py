"""Watches one running server for the keeper: exit, dead and hanging processes, probes. Decides what a restart must answer.

``look`` returns quickly and is called a few times per second. Probes run in a thread of their own, because one may take a minute.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from bistream.contract.fields import LLM_BISTREAM
from bistream.keeper.hangs import HangWatcher
from bistream.keeper.probe import ProbeError, ProbeSchedule
from bistream.keeper.reloads import RELOADED_ALONE, Reloads
from bistream.keeper.restart_policy import RestartLimits
from bistream.keeper.server_process import Interrupted

logger = logging.getLogger(__name__)

OTHERS_PATIENCE_S = 5.0  # for the sessions that do not need a failed language model: their speech tokens are complete
QUIET_PATIENCE_S = 30.0  # where no session is disturbed yet
JOIN_TIMEOUT_S = 1.0  # a probe notices within a quarter of a second that it shall stop
MAX_LEFTOVERS = 4  # dead model instances that a server keeps, each with its pool of threads


@dataclass(frozen=True)
class Fault:
    """Why the server must be restarted. model: the one that its sessions have lost ("": none). patience_s: for all other sessions.
    is_mute: no session can be told, because the server itself hangs."""

    reason: str
    model: str = ""
    patience_s: float = 0.0
    is_mute: bool = False


class Models(Protocol):
    """The part of ``ServedModels`` that is needed here."""

    def take_dead(self) -> list[str]: ...
    def count_dead(self) -> int: ...
    def unload(self, model: str) -> None: ...
    def load(self, model: str) -> None: ...


class Watched(Protocol):
    """The part of ``TritonServer`` that is needed here."""

    @property
    def models(self) -> Models: ...
    def exit_code(self) -> int | None: ...
    def file_failure(self) -> str | None: ...


class ServerWatch:
    """Of one server, until ``stop``. probe: of all models, given a function that says when to stop."""

    def __init__(
        self,
        server: Watched,
        probe: Callable[[Callable[[], bool]], None],
        probe_interval_s: float,
        limits: RestartLimits,
        clock: Callable[[], float],
        hangs: HangWatcher,
    ) -> None:
        self._server = server
        self._hangs = hangs
        self._reloads = Reloads(server.models, limits, clock)
        self._prober = Prober(probe, ProbeSchedule(probe_interval_s, clock=clock))

    def look(self) -> Fault | None:
        """What is wrong now and needs a restart. Begins to load models anew where that is enough."""
        code = self._server.exit_code()
        if code is not None:
            return Fault(f"The server ended by itself with exit code {code}")
        if (reason := self._hangs.look()) is not None:
            return Fault(reason, is_mute=True)
        for model in self._server.models.take_dead():
            if model not in RELOADED_ALONE:
                patience_s = OTHERS_PATIENCE_S if model == LLM_BISTREAM.name else 0.0
                return Fault(f"The process of a model has died ({model})", model, patience_s)
            self._reloads.begin(model)
        if (reason := self._reloads.failure()) is not None:
            return Fault(reason, patience_s=QUIET_PATIENCE_S)
        if self._server.models.count_dead() > MAX_LEFTOVERS:
            return Fault("The server keeps too much of model processes that have died", patience_s=QUIET_PATIENCE_S)
        reason = self._server.file_failure() or self._prober.look()
        return None if reason is None else Fault(reason)

    def stop(self) -> None:
        """Idempotent; a probe that is under way ends soon."""
        self._reloads.stop()
        self._prober.stop()
        self._hangs.stop()


class Prober:
    """Runs the probes when they are due, one at a time."""

    def __init__(self, probe: Callable[[Callable[[], bool]], None], schedule: ProbeSchedule) -> None:
        self._probe = probe
        self._schedule = schedule
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: ProbeError | None = None

    def look(self) -> str | None:
        """Begin a probe that is due. Returns why the server counts as broken, once too many have failed in a row."""
        if self._thread is not None and not self._thread.is_alive():
            self._thread = None
            error, self._error = self._error, None
            if error is not None:
                logger.warning("a probe failed: %s", error)
            if self._schedule.record(error is None):
                return f"The server does not work: {error}"
        if self._thread is None and self._schedule.is_due():
            self._thread = threading.Thread(target=self._run, name="bistream-probe", daemon=True)
            self._thread.start()
        return None

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(JOIN_TIMEOUT_S)

    def _run(self) -> None:
        try:
            self._probe(self._stopped.is_set)
        except Interrupted:
            pass
        except ProbeError as error:
            self._error = error
        except Exception as error:
            logger.exception("a probe could not be made")
            self._error = ProbeError(f"the probe itself failed ({type(error).__name__})")


def failure(server: Watched, survivable: frozenset[str] = frozenset()) -> str | None:
    """A failure that is visible without a request to the server, or ``None``; reported once. survivable: models that may be missing."""
    code = server.exit_code()
    if code is not None:
        return f"The server ended by itself with exit code {code}"
    dead = [model for model in server.models.take_dead() if model not in survivable]
    return f"The process of a model has died ({', '.join(dead)})" if dead else server.file_failure()
