"""Processes that are kept running together, each restarted alone, and that end in order. Base of ``server_group``, and for
``scripts/serve_all.py``.

The first signal ends one stage after the other, each in its own time; a stage is kept running until those before it have ended. The second
signal hurries all of them. When the first start of a member fails, the operator has to act: all end, with its reason.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from bistream.keeper.group_member import Member
from bistream.keeper.host import ServerError, handle_stop_signals

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 0.1
HURRIED_TIMEOUT_S = 20.0  # for members that end at once, to tell their sessions


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
