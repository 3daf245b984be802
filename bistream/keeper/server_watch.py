"""Watches one running server for the keeper: exit, dead and hanging processes, probes. Decides which faults need a restart.

``look`` returns quickly and is called a few times per second; probes and the loading of a model have threads of their own, because they
may take a minute. Only the models that analyse recordings are loaded anew alone: each request to them stands alone. The two that hold the
sessions' state could be as well, but requests of the front models that were in the dead process never return: each keeps a thread on both
sides, and the channel to the model is of no use any more.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from bistream.contract.fields import AUDIO_TOKENIZER, LLM_BISTREAM, SPEAKER_EMBEDDING
from bistream.keeper.hangs import Hangs
from bistream.keeper.host import ServerError
from bistream.keeper.model_requests import RequestError
from bistream.keeper.served_models import ServedModels
from bistream.keeper.server_process import TritonServer

logger = logging.getLogger(__name__)

RELOADED_ALONE = frozenset({AUDIO_TOKENIZER.name, SPEAKER_EMBEDDING.name})
OTHERS_PATIENCE_S = 5.0  # for the sessions that do not need a failed language model: their speech tokens are complete
QUIET_PATIENCE_S = 30.0  # where no session is disturbed yet
FAILED_PROBES_ALLOWED = 2
LOAD_ATTEMPTS, LOAD_RETRY_S = 3, 1.0
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
    """Of one server, until ``stop``. probe: of all models, given a function that says when to stop. fault: what was found last."""

    def __init__(
        self,
        server: TritonServer,
        probe: Callable[[Callable[[], bool]], None],
        probe_interval_s: float,
        clock: Callable[[], float],
        hangs: Hangs | None,
    ) -> None:
        self.fault: Fault | None = None
        self._server = server
        self._hangs = hangs
        self._deaths = 0  # that were answered by a reload
        self._reloads = Reloads(server.models)
        self._prober = Prober(probe, probe_interval_s, clock)

    def look(self) -> Fault | None:
        """What is wrong now and needs a restart. Begins to load models anew where that is enough."""
        self.fault = self._find()
        return self.fault

    def _find(self) -> Fault | None:
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


class Reloads:
    """Of the models of one server, each in a thread of its own. ``begin`` and ``failure`` are called by the thread that watches it."""

    def __init__(self, models: ServedModels) -> None:
        self._models = models
        self._running: set[str] = set()
        self._failures: list[str] = []
        self._stopped = threading.Event()

    def begin(self, model: str) -> None:
        """Replace the dead process of ``model``. Returns at once; has no effect while that is under way."""
        if model not in self._running:
            logger.error("the process of %s has died; sessions go on, the model is loaded anew", model)
            self._running.add(model)
            threading.Thread(target=self._reload, args=(model,), name=f"bistream-reload-{model}", daemon=True).start()

    def failure(self) -> str | None:
        """Why a model could not be loaded anew, so that the server must be restarted; ``None`` as long as all goes well."""
        return self._failures[0] if self._failures else None

    def stop(self) -> None:
        """Begin nothing more; a load that is under way ends with the server."""
        self._stopped.set()

    def _reload(self, model: str) -> None:
        reason = ""
        try:
            self._models.unload(model)  # its callers are refused at once; a dead process would keep each of them for a second
            for _ in range(LOAD_ATTEMPTS):
                try:
                    self._models.load(model)
                    logger.info("model %s is loaded again", model)
                    return
                except ServerError as error:
                    reason = str(error).rstrip(".")
                    logger.warning("%s", reason)
                if self._stopped.wait(LOAD_RETRY_S):
                    return
        except ServerError as error:
            reason = str(error).rstrip(".")
        finally:
            self._running.discard(model)
        if not self._stopped.is_set():
            self._failures.append(reason)


class Prober:
    """Runs the probes when they are due, one at a time. interval_s: 0: never."""

    def __init__(self, probe: Callable[[Callable[[], bool]], None], interval_s: float, clock: Callable[[], float]) -> None:
        self._probe = probe
        self._interval_s = interval_s
        self._clock = clock
        self._due_at = clock() + interval_s if interval_s > 0 else float("inf")
        self._failures = 0  # in a row
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="bistream-probe")
        self._running: Future[None] | None = None

    def look(self) -> str | None:
        """Begin a probe that is due. Returns why the server counts as broken, once too many have failed in a row: a single slow answer
        under load does not justify a restart."""
        if self._running is not None and self._running.done():
            error, self._running = self._running.exception(), None
            self._due_at = self._clock() + self._interval_s
            self._failures = 0 if error is None else self._failures + 1
            if error is not None:
                logger.warning("a probe failed: %s", error, exc_info=None if isinstance(error, RequestError) else error)
            if self._failures > FAILED_PROBES_ALLOWED:
                return f"The server does not work: {error}"
        if self._running is None and self._clock() >= self._due_at:
            self._running = self._pool.submit(self._probe, self._stopped.is_set)
        return None

    def stop(self) -> None:
        """A probe notices within a quarter of a second."""
        self._stopped.set()
        self._pool.shutdown(wait=False)
