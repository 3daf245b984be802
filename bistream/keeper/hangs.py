"""Which processes hang, and which are only busy: reads signs of life, kills model processes that hang, notices a server that does.

A process hangs when nothing about it has changed for ``limit_s``: no new heartbeat, no change between stopped and running. Only time in
which the keeper itself looked counts, at most a second for each look: if the whole machine stood still (suspended, migrated, short of
memory) or somebody stopped the keeper, nobody else is blamed. A process that said how long it is busy is given that time first, unless
it is stopped (SIGSTOP, a debugger): then it is not busy. Loading is excepted: a server that starts is not watched yet, and a model that is
loaded anew says that it is busy. A model process that was killed is treated as any dead one (``server_watch``).

The limit is above ``LONGEST_STOP_S``, so that whatever is stopped for that long goes on afterwards, and below three seconds more with all
that follows (the next look, the notice, the front model's look), so that no caller waits longer for an answer.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

from bistream.keeper.health import LIVE
from bistream.keeper.host import fetch
from bistream.keeper.served_models import STOPPED, ModelProcess, Sign, process_state
from bistream.keeper.server_process import TritonServer
from bistream.processes.control_files import LONGEST_STOP_S

logger = logging.getLogger(__name__)

HANG_TIMEOUT_S = LONGEST_STOP_S + 0.75
MAX_STEP_S = 1.0
ASK_INTERVAL_S, ASK_TIMEOUT_S = 0.5, 2.0
WARN_AFTER_S = 5.0
_SERVER = "tritonserver"


@dataclass
class _Silence:
    sign: Sign
    busy_left_s: float
    seconds: float = 0.0


class HangWatch:
    """Follows any number of processes by a name of the caller's choice."""

    def __init__(self, limit_s: float = HANG_TIMEOUT_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._looked_at = clock()
        self._silences: dict[Hashable, _Silence] = {}

    def look(self, signs: Mapping[Hashable, Sign]) -> dict[Hashable, float]:
        """Seconds of silence of each process that hangs. One that is missing from ``signs`` is forgotten."""
        now = self._clock()
        step_s, self._looked_at = min(now - self._looked_at, MAX_STEP_S), now
        self._silences = {name: self._heard(name, sign, step_s) for name, sign in signs.items()}
        return {name: seconds for name, seconds in self.silences().items() if seconds >= self._limit_s}

    def _heard(self, name: Hashable, sign: Sign, step_s: float) -> _Silence:
        silence = self._silences.get(name)
        if silence is None or (silence.sign.beat, silence.sign.is_stopped) != (sign.beat, sign.is_stopped):
            return _Silence(sign, sign.busy_s)
        if silence.busy_left_s > 0.0 and not sign.is_stopped:
            silence.busy_left_s -= step_s
        elif sign.is_stopped or sign.beat is not None:
            silence.seconds += step_s
        return silence

    def silences(self) -> dict[Hashable, float]:
        """Seconds of silence of every process at the last look."""
        return {name: silence.seconds for name, silence in self._silences.items()}


class Hangs:
    """Of one running server."""

    def __init__(
        self, server: TritonServer, limit_s: float, clock: Callable[[], float] = time.monotonic, kill: Callable[[int, int], None] = os.kill
    ) -> None:
        self._server = server
        self._watch = HangWatch(limit_s, clock)
        self._kill = kill
        self._answers = Answers(server.http_url)
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
        self._address = http_url
        self._stopped = threading.Event()
        threading.Thread(target=self._ask_on, name="bistream-answers", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _ask_on(self) -> None:
        while not self._stopped.wait(ASK_INTERVAL_S):
            self.count += fetch(self._address, LIVE, ASK_TIMEOUT_S) is not None  # whatever it says
