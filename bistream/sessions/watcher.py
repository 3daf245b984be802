"""Handles events that arrive without a message: disconnects and deadlines. A task of the orchestrator's event loop."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from bistream.sessions.speaking import SessionRun

logger = logging.getLogger(__name__)

POLL_INTERVAL_S = 0.02
DEADLINES_EVERY = 10  # rounds: deadlines are seconds long
MAX_POLLS = 64  # of a round: each costs 28 us; more sessions take turns


class Reply(Protocol):
    def is_cancelled(self) -> bool:
        """Whether the client has gone. May block."""


Waiting = TypeVar("Waiting", bound=Reply)


class ClientPoller:
    """Asks Triton which clients have gone. Each answer takes a round trip to the server, so a thread asks."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "bistream-poll")
        self._next = 0  # index of the first that the next round asks for

    async def gone(self, replies: Sequence[Waiting]) -> list[Waiting]:
        begin = self._next if self._next < len(replies) else 0
        self._next = begin + MAX_POLLS
        asked = [*replies, *replies][begin : begin + min(len(replies), MAX_POLLS)]
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: [reply for reply in asked if _has_gone(reply)])

    def close(self) -> None:
        self._thread.shutdown()


def _has_gone(reply: Reply) -> bool:
    try:
        return reply.is_cancelled()
    except Exception:
        logger.exception("asking for one client failed; the others continue")
        return False


class Watcher:
    def __init__(self, runs: Mapping[str, SessionRun]) -> None:
        """runs: the open sessions; changed by others in the loop."""
        self._runs = runs
        self._poller = ClientPoller()

    async def watch_on(self, some_session: Callable[[], Awaitable[None]]) -> None:
        """Until the task is cancelled. some_session: returns once there is one."""
        for number in itertools.count():
            await asyncio.sleep(POLL_INTERVAL_S)
            await some_session()
            await self.watch(with_deadlines=number % DEADLINES_EVERY == 0)

    async def watch(self, with_deadlines: bool) -> None:
        """One round: end the sessions whose client has disconnected, and run every session's timed work."""
        by_reply = {run.session.reply: run for run in self._runs.values()}
        gone = await self._poller.gone(list(by_reply))
        tasks = [by_reply[reply].client_has_gone for reply in gone]
        tasks += [run.tick for run in by_reply.values()]
        if with_deadlines:
            tasks += [run.check_deadlines for run in by_reply.values()]
        for task in tasks:
            try:
                task()
            except Exception:
                logger.exception("watching one session failed; the others continue")

    def close(self) -> None:
        self._poller.close()
