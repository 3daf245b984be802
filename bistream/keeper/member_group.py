"""Processes that are kept running together, each restarted alone, and that end in order: the gate (``gate``), servers and their proxy
(``server_group``), a server and its interfaces (``scripts/serve_all.py``).

The first signal ends one stage after the other, each in its own time; a stage is kept running until those before it have ended. The second
signal hurries all of them. When the first start of a member fails, the operator has to act: all end, with its reason.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bistream.keeper.child import OutputCopy, spawn, to_stderr
from bistream.keeper.host import ServerError, handle_stop_signals
from bistream.keeper.restart_policy import RestartLimits, RestartPolicy

logger = logging.getLogger(__name__)

ROOT = Path(__file__).resolve().parents[2]  # holds the packages gateway and interfaces
LOOK_INTERVAL_S = 0.1
OPEN_TIMEOUT_S = 60.0
HURRIED_TIMEOUT_S = 20.0  # for members that end at once, to tell their sessions


@dataclass(frozen=True)
class MemberPlan:
    """command: an absolute path and its arguments. ready: whether the process, while it runs, is of use, or a file that it keeps while it
    is. environment: added to ours. end_timeout_s: how long its end may take. has_label: the lines of its output get its name in front."""

    name: str
    command: Sequence[str]
    ready: Path | Callable[[], bool]
    environment: Mapping[str, str] = field(default_factory=dict)
    end_timeout_s: float = math.inf
    has_label: bool = True

    def is_ready(self) -> bool:
        return self.ready.exists() if isinstance(self.ready, Path) else self.ready()


def import_path() -> dict[str, str]:
    """The environment in which ``python -m`` finds the packages of this checkout from any folder."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}


def spawn_member(plan: MemberPlan) -> tuple[subprocess.Popen[str], Callable[[], str]]:
    """The process and its last line. Raises ``ServerError``."""
    try:
        process = spawn(plan.command, env={**os.environ, **plan.environment})
        label = f"[{plan.name}] " if plan.has_label else ""
        return process, OutputCopy(process, lambda line: to_stderr(label + line)).last_line
    except (OSError, RuntimeError) as error:  # RuntimeError: no thread
        raise ServerError(f"{plan.name} cannot be started ({error}); see the limits in docs/operations.md.") from None


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
        if isinstance(self.plan.ready, Path):
            self.plan.ready.unlink(missing_ok=True)  # that of a process that was killed
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
        logger.error("%s; starting it again in %.1f s (failure %d)", reason.rstrip("."), delay_s, self._policy.failures)

    def ask_to_end(self) -> None:
        """A server drains the first time, and ends at once the second time."""
        if self._process is not None:
            for number in (signal.SIGTERM, signal.SIGCONT):  # a stopped process would not hear the first one alone
                self._process.send_signal(number)  # of no effect on a process that has ended

    def kill(self) -> None:
        """Idempotent. What it has started dies with it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class MemberGroup:
    """stages: in the order of their end; they start the other way round. pause, clock: for tests."""

    def __init__(
        self,
        stages: Sequence[Sequence[Member]],
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stages = stages
        self._pause = pause
        self._clock = clock
        self._stops = 0

    def stop(self) -> None:
        """The first call ends ``run`` once the running sessions have ended, the second at once. For signal handlers and any thread."""
        self._stops += 1

    def handle_signals(self) -> None:
        handle_stop_signals(self.stop)

    def run(self) -> None:
        """Until ``stop``. Raises ``ServerError`` when the group cannot start; nothing runs then."""
        try:
            self._start()
            while self._stops == 0:
                self._look()
                self._pause(LOOK_INTERVAL_S)
        except BaseException:
            self._stops += 2
            raise
        finally:
            for number, stage in enumerate(self._stages):
                self._end(stage, [member for later in self._stages[number + 1 :] for member in later])

    @property
    def _is_hurried(self) -> bool:
        return self._stops > 1

    def _start(self) -> None:
        """Raises ``ServerError``."""
        for stage in reversed(self._stages):
            for member in stage:
                if self._stops == 0:
                    member.start()

    def _open(self, member: Member) -> None:
        """Start it and wait until it is ready, or ``stop``: what comes next may take minutes, and a port in use is told before. Raises
        ``ServerError``."""
        member.start()
        give_up_at = self._clock() + OPEN_TIMEOUT_S
        while self._stops == 0 and not member.is_ready:
            member.look()
            if member.failure:
                raise ServerError(member.failure)
            if self._clock() > give_up_at:
                raise ServerError(f"{member.plan.name} was not ready after {OPEN_TIMEOUT_S:.0f} s; the reason is in the lines above.")
            self._pause(LOOK_INTERVAL_S)

    def _look(self) -> None:
        """Restart what has ended. Raises ``ServerError`` when the group is of no use."""
        for stage in self._stages:
            for member in stage:
                member.look()
                if member.has_never_worked:
                    raise ServerError(member.failure)

    def _end(self, stage: Sequence[Member], later: Sequence[Member]) -> None:
        """Until every member has ended; what then still runs is killed. later: kept running meanwhile."""
        logger.info("asking %s to end", ", ".join(member.plan.name for member in stage))
        for member in stage:
            member.ask_to_end()
        give_up_at, was_hurried = self._clock() + max(member.plan.end_timeout_s for member in stage), False
        try:
            while any(member.is_running for member in stage) and self._clock() < give_up_at:
                if self._is_hurried:
                    give_up_at = give_up_at if was_hurried else min(give_up_at, self._clock() + HURRIED_TIMEOUT_S)
                    was_hurried = True
                    for member in stage:  # at each look: two signals at once may be taken for one
                        member.ask_to_end()
                for member in later:
                    if not member.is_running and not self._is_hurried:
                        member.look()
                self._pause(LOOK_INTERVAL_S)
        finally:
            for member in stage:
                member.kill()
