"""Ends model processes that hang and notices a server that does: reads their signs of life for ``hang_watch``.

A hanging model process is killed, and from then on treated as any dead one (``server_watch``). Loading is excepted: a server that starts
is not watched yet, and a model that is loaded anew says that it is busy.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Hashable

from bistream.keeper.hang_watch import HangWatch, Sign
from bistream.keeper.model_processes import STOPPED, process_state
from bistream.keeper.served_models import ModelProcess
from bistream.keeper.server_process import TritonServer

logger = logging.getLogger(__name__)

ASK_INTERVAL_S, ASK_TIMEOUT_S = 0.5, 2.0
WARN_AFTER_S = 5.0
_SERVER = "tritonserver"


class Hangs:
    """Of one running server."""

    def __init__(
        self, server: TritonServer, limit_s: float, clock: Callable[[], float] = time.monotonic, kill: Callable[[int, int], None] = os.kill
    ) -> None:
        self._server = server
        self._watch = HangWatch(limit_s, clock)
        self._kill = kill
        self._answers = Answers(server.http_url)
        self._answers.start()
        self._has_warned = False

    def look(self) -> str | None:
        """Kill the model processes that hang. Returns why the server itself must be killed, or ``None``."""
        is_stopped = process_state(self._server.pid) in STOPPED
        signs: dict[Hashable, Sign] = dict(self._server.models.signs().items())
        signs[_SERVER] = Sign(self._answers.count, is_stopped)
        reason = None
        for name, silent_s in self._watch.look(signs).items():
            if isinstance(name, ModelProcess):
                logger.error("the process of %s has given no sign of life for %.1f s and is killed", name.model, silent_s)
                with contextlib.suppress(ProcessLookupError):
                    self._kill(name.pid, signal.SIGKILL)
            else:
                reason = f"The server has not answered for {silent_s:.1f} s"
        self._warn()
        return reason

    def stop(self) -> None:
        self._answers.stop()

    def _warn(self) -> None:
        silent = [name for name, seconds in self._watch.silences().items() if seconds >= WARN_AFTER_S]
        if silent and not self._has_warned:
            names = ", ".join(name.model if isinstance(name, ModelProcess) else str(name) for name in silent)
            logger.warning("no sign of life for %.0f s: %s", WARN_AFTER_S, names)
        self._has_warned = bool(silent)


class Answers:
    """Counts the answers of a server to a request that involves no model."""

    def __init__(self, http_url: str) -> None:
        self.count = 0
        self._url = f"http://{http_url}/v2/health/live"
        self._stopped = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._ask_on, name="bistream-answers", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _ask_on(self) -> None:
        while not self._stopped.wait(ASK_INTERVAL_S):
            try:
                with urllib.request.urlopen(self._url, timeout=ASK_TIMEOUT_S):
                    self.count += 1
            except urllib.error.HTTPError:
                self.count += 1  # whatever it says
            except OSError:
                pass
