"""What happens to sessions without a message: their clients disconnect, and their time comes. A task of the orchestrator's event loop.

Asking Triton whether a client has gone blocks for a round trip to the server, so a thread asks.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from bistream.sessions.session import Reply
from bistream.sessions.speaking import SessionRun

logger = logging.getLogger(__name__)

INTERVAL_S = 0.02
DEADLINES_EVERY = 10  # rounds: deadlines are seconds long
MAX_POLLS = 64  # of a round: each costs 28 us; more sessions take turns


class Watcher:
    def __init__(self, runs: Mapping[str, SessionRun]) -> None:
        """runs: the open sessions; changed by others in the loop."""
        self._runs = runs
        self._poller = ThreadPoolExecutor(1, "bistream-poll")
        self._next_poll = 0  # index in ``runs``

    async def watch_on(self, some_session: Callable[[], Awaitable[None]]) -> None:
        """Until the task is cancelled. some_session: returns once there is one."""
        for number in itertools.count():
            await asyncio.sleep(INTERVAL_S)
            await some_session()
            await self.watch(with_deadlines=number % DEADLINES_EVERY == 0)

    async def watch(self, with_deadlines: bool) -> None:
        """One round: end the sessions whose client has disconnected, and run every session's timed work."""
        runs = list(self._runs.values())
        polled = self._next_to_poll(runs)
        gone = await asyncio.get_running_loop().run_in_executor(self._poller, _gone, [run.session.reply for run in polled])
        tasks = [run.client_has_gone for run, has_gone in zip(polled, gone, strict=True) if has_gone]
        tasks += [run.tick for run in runs]
        if with_deadlines:
            tasks += [run.check_deadlines for run in runs]
        for task in tasks:
            try:
                task()
            except Exception:
                logger.exception("watching one session failed; the others continue")

    def close(self) -> None:
        self._poller.shutdown()

    def _next_to_poll(self, runs: list[SessionRun]) -> list[SessionRun]:
        begin = self._next_poll if self._next_poll < len(runs) else 0
        self._next_poll = begin + MAX_POLLS
        return (runs + runs)[begin : begin + min(len(runs), MAX_POLLS)]


def _gone(replies: list[Reply]) -> list[bool]:
    """Whether the client of each has gone. Blocks."""
    return [_has_gone(reply) for reply in replies]


def _has_gone(reply: Reply) -> bool:
    try:
        return reply.is_cancelled()
    except Exception:
        logger.exception("asking for one client failed; the others continue")
        return False
