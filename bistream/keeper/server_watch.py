"""Watches one running server for the keeper: exit, dead and hanging processes, probes. Decides what a restart must answer.

``look`` returns quickly and is called a few times per second. Probes run in a thread of their own, because one may take a minute.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from bistream.contract.fields import LLM_BISTREAM
from bistream.keeper.hangs import Hangs
from bistream.keeper.model_requests import RequestError
from bistream.keeper.reloads import RELOADED_ALONE, Reloads
from bistream.keeper.restart_policy import RestartLimits
from bistream.keeper.server_process import Interrupted, TritonServer

logger = logging.getLogger(__name__)

OTHERS_PATIENCE_S = 5.0  # for the sessions that do not need a failed language model: their speech tokens are complete
QUIET_PATIENCE_S = 30.0  # where no session is disturbed yet
JOIN_TIMEOUT_S = 1.0  # a probe notices within a quarter of a second that it shall stop
FAILED_PROBES_ALLOWED = 2
MAX_RELOADS = 4  # of one server, which keeps the dead instance of each, with its pool of threads


@dataclass(frozen=True)
class Fault:
    """Why the server must be restarted. model: the one that its sessions have lost ("": none). patience_s: for all other sessions.
    is_mute: no session can be told, because the server itself hangs."""

    reason: str
    model: str = ""
    patience_s: float = 0.0
    is_mute: bool = False


class ServerWatch:
    """Of one server, until ``stop``. probe: of all models, given a function that says when to stop."""

    def __init__(
        self,
        server: TritonServer,
        probe: Callable[[Callable[[], bool]], None],
        probe_interval_s: float,
        limits: RestartLimits,
        clock: Callable[[], float],
        hangs: Hangs | None,
    ) -> None:
        self._server = server
        self._hangs = hangs
        self._deaths = 0  # that were answered by a reload
        self._reloads = Reloads(server.models, limits, clock)
        self._prober = Prober(probe, probe_interval_s, clock)

    def look(self) -> Fault | None:
        """What is wrong now and needs a restart. Begins to load models anew where that is enough."""
        code = self._server.exit_code()
        if code is not None:
            return Fault(f"The server ended by itself with exit code {code}")
        if self._hangs is not None and (reason := self._hangs.look()) is not None:
            return Fault(reason, is_mute=True)
        for model in self._server.models.take_dead():
            if model not in RELOADED_ALONE:
                patience_s = OTHERS_PATIENCE_S if model == LLM_BISTREAM.name else 0.0
                return Fault(f"The process of a model has died ({model})", model, patience_s)
            self._deaths += 1
            if self._deaths > MAX_RELOADS:
                return Fault("The server keeps too much of model processes that have died", patience_s=QUIET_PATIENCE_S)
            self._reloads.begin(model)
        if (reason := self._reloads.failure()) is not None:
            return Fault(reason, patience_s=QUIET_PATIENCE_S)
        reason = self._prober.look()
        return None if reason is None else Fault(reason)

    def stop(self) -> None:
        """Idempotent; a probe that is under way ends soon."""
        self._reloads.stop()
        self._prober.stop()
        if self._hangs is not None:
            self._hangs.stop()


class Prober:
    """Runs the probes when they are due, one at a time. interval_s: 0: never."""

    def __init__(self, probe: Callable[[Callable[[], bool]], None], interval_s: float, clock: Callable[[], float]) -> None:
        self._probe = probe
        self._interval_s = interval_s
        self._clock = clock
        self._due_at = clock() + interval_s if interval_s > 0 else float("inf")
        self._failures = 0  # in a row
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: RequestError | None = None

    def look(self) -> str | None:
        """Begin a probe that is due. Returns why the server counts as broken, once too many have failed in a row: a single slow answer
        under load does not justify a restart."""
        if self._thread is not None and not self._thread.is_alive():
            self._thread = None
            self._due_at = self._clock() + self._interval_s
            error, self._error = self._error, None
            self._failures = 0 if error is None else self._failures + 1
            if error is not None:
                logger.warning("a probe failed: %s", error)
            if self._failures > FAILED_PROBES_ALLOWED:
                return f"The server does not work: {error}"
        if self._thread is None and self._clock() >= self._due_at:
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
        except RequestError as error:
            self._error = error
        except Exception as error:
            logger.exception("a probe could not be made")
            self._error = RequestError(f"the probe itself failed ({type(error).__name__})")


def failure(server: TritonServer, survivable: frozenset[str] = frozenset()) -> str | None:
    """A failure that is visible without a request to the server, or ``None``; reported once. survivable: models that may be missing."""
    code = server.exit_code()
    if code is not None:
        return f"The server ended by itself with exit code {code}"
    dead = [model for model in server.models.take_dead() if model not in survivable]
    return f"The process of a model has died ({', '.join(dead)})" if dead else None
