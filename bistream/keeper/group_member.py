"""One process of a group, started again when it ends: a server with its keeper, or what stands before it. Used by ``member_group``."""

from __future__ import annotations

import logging
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bistream.keeper.child import OutputCopy, spawn
from bistream.keeper.host import ServerError
from bistream.keeper.restart_policy import RestartLimits, RestartPolicy

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class MemberPlan:
    """command: an absolute path and its arguments. is_ready: whether the process, while it runs, is of use. environment: added to ours.
    clear: removes what an earlier process has left that ``is_ready`` would find. end_timeout_s: how long its end may take. has_label: the
    lines of its output get its name in front."""

    name: str
    command: Sequence[str]
    is_ready: Callable[[], bool]
    environment: Mapping[str, str] = field(default_factory=dict)
    clear: Callable[[], None] = lambda: None
    end_timeout_s: float = math.inf
    has_label: bool = True


def spawn_member(plan: MemberPlan) -> tuple[subprocess.Popen[str], Callable[[], str]]:
    """The process and its last line. Raises ``ServerError``."""
    try:
        process = spawn(plan.command, env={**os.environ, **plan.environment})
    except OSError as error:
        raise ServerError(f"{plan.name} cannot be started ({error.strerror}); see the limits in docs/operations.md.") from None
    return process, OutputCopy(process, f"[{plan.name}] " if plan.has_label else "").last_line


class Member:
    """``start`` it, ``look`` often, ``ask_to_end``, ``kill``. Used by one thread, which must live as long as the process.

    limits: of restarts. spawn_process, clock: for tests.
    """

    def __init__(
        self,
        plan: MemberPlan,
        limits: RestartLimits | None = None,
        spawn_process: Callable[[MemberPlan], tuple[subprocess.Popen[str], Callable[[], str]]] = spawn_member,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.plan = plan
        self.was_ready = False  # at any time
        self.failure = ""  # why it does not run, while it does not
        self._policy = RestartPolicy(limits or RestartLimits(), clock)
        self._spawn = spawn_process
        self._clock = clock
        self._process: subprocess.Popen[str] | None = None
        self._last_line: Callable[[], str] = str
        self._restart_at = 0.0

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self.is_running else None

    @property
    def is_ready(self) -> bool:
        return self.is_running and self.plan.is_ready()

    @property
    def has_never_worked(self) -> bool:
        """It has failed, and was not ready before."""
        return bool(self.failure) and not self.was_ready

    def start(self) -> None:
        """Raises ``ServerError``."""
        self.plan.clear()
        self._process, self._last_line = self._spawn(self.plan)

    def look(self) -> None:
        """Notice its end, and at a later look start it again when that is due."""
        has_worked = self._process is not None and self.plan.is_ready()  # also one that has died a moment ago
        self.was_ready = self.was_ready or has_worked
        if self.is_running:
            if has_worked:
                self.failure = ""
            return
        if self._process is not None:
            self._note_end(self._process.poll())
        elif self._clock() >= self._restart_at:
            try:
                self.start()
            except ServerError as error:  # no process or file to be had for the moment
                self._fail(str(error))

    def _note_end(self, code: int | None) -> None:
        self._process = None
        if code == 0:  # somebody asked it to end, to have a fresh one
            self._restart_at = self._clock()
            logger.info("%s has ended as asked; starting it again", self.plan.name)
            return
        if code is not None and code < 0:
            self._fail(f"{self.plan.name} was killed by signal {-code}")
            return
        said = self._last_line()
        self._fail(f"{self.plan.name} ended with exit code {code}" + (f": {said}" if said else ""))

    def _fail(self, reason: str) -> None:
        delay_s = self._policy.record_failure()
        self._restart_at = self._clock() + delay_s
        self.failure = reason
        logger.error("%s; starting it again in %.0f s (failure %d)", reason.rstrip("."), delay_s, self._policy.failures)

    def ask_to_end(self) -> None:
        """A server drains the first time, and ends at once the second time."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)  # of no effect on a process that has ended

    def kill(self) -> None:
        """Idempotent. What it has started dies with it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
