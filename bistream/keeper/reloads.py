"""Replaces dead processes of the models that sessions survive, while the server goes on serving.

Only the models that analyse recordings: each request to them stands alone. The two that hold the sessions' state could be loaded anew as
well, but requests of the front models that were in the dead process never return: each keeps a thread on both sides, and the channel to the
model (``transport/channel.py``) is of no use any more. So for those the whole server is restarted (``supervisor``).

One thread for each reload, because loading takes seconds and the keeper must go on watching.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from bistream.contract.fields import AUDIO_TOKENIZER, SPEAKER_EMBEDDING
from bistream.keeper.host import ServerError
from bistream.keeper.restart_policy import RestartLimits, RestartPolicy
from bistream.keeper.served_models import ServedModels

logger = logging.getLogger(__name__)

RELOADED_ALONE = frozenset({AUDIO_TOKENIZER.name, SPEAKER_EMBEDDING.name})


class Reloads:
    """Of the models of one server. ``begin`` and ``failure`` are called by the thread that watches it."""

    def __init__(self, models: ServedModels, limits: RestartLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._models = models
        self._limits = limits
        self._clock = clock
        self._policies: dict[str, RestartPolicy] = {}
        self._running: set[str] = set()
        self._failures: list[str] = []
        self._stopped = threading.Event()

    def begin(self, model: str) -> None:
        """Replace the dead process of ``model``. Returns at once; has no effect while that is under way."""
        if model in self._running:
            return
        policy = self._policies.setdefault(model, RestartPolicy(self._limits, self._clock))
        delay_s = policy.record_failure()
        logger.error("the process of %s has died; sessions go on, the model is loaded anew in %.0f s", model, delay_s)
        self._running.add(model)
        threading.Thread(target=self._reload, args=(model, policy, delay_s), name=f"bistream-reload-{model}", daemon=True).start()

    def failure(self) -> str | None:
        """Why a model could not be loaded anew, so that the server must be restarted; ``None`` as long as all goes well."""
        return self._failures[0] if self._failures else None

    def stop(self) -> None:
        """Begin nothing more; a load that is under way ends with the server."""
        self._stopped.set()

    def _reload(self, model: str, policy: RestartPolicy, delay_s: float) -> None:
        try:
            self._models.unload(model)  # its callers are refused at once; a dead process would keep each of them for a second
            while not self._stopped.wait(delay_s):
                try:
                    self._models.load(model)
                    logger.info("model %s is loaded again", model)
                    return
                except ServerError as error:
                    delay_s = policy.record_failure()
                    if policy.is_exhausted:
                        raise
                    logger.warning("%s; the next attempt is in %.0f s", str(error).rstrip("."), delay_s)
        except ServerError as error:
            if not self._stopped.is_set():
                self._failures.append(str(error).rstrip("."))
        finally:
            self._running.discard(model)
