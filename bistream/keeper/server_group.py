"""Several servers on one host, and the proxy before them: all are kept running, and drained together.

A server that ends is started again; until it is ready, the proxy sends sessions to the others. So one server can be exchanged at a time:
SIGTERM to its keeper drains it, and its successor takes its place. When no server has ever been ready and all have failed, the operator has
to act, and the group ends with the reason. Called by ``scripts/serve_gpus.py``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from bistream.keeper.host import ServerError
from bistream.keeper.member_group import Member, MemberGroup

logger = logging.getLogger(__name__)


class ServerGroup(MemberGroup):
    """on_change: called with the members that take sessions, whenever these are others. pause, clock: for tests."""

    def __init__(
        self,
        servers: Sequence[Member],
        proxy: Member,
        on_change: Callable[[list[Member]], None] = lambda ready: None,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__([servers, [proxy]], pause, clock)
        self._servers = servers
        self._proxy = proxy
        self._on_change = on_change
        self._ready: list[Member] = []

    @property
    def is_ready(self) -> bool:
        """Whether new sessions are taken."""
        return bool(self._ready) and self._stops == 0

    @property
    def state(self) -> str:
        """For people."""
        if self._stops:
            return "The servers are shutting down."
        failures = [member.failure for member in (self._proxy, *self._servers) if member.failure]
        return f"{len(self._ready)} of {len(self._servers)} servers take sessions." + "".join(
            f" {failure.rstrip('.')}." for failure in failures
        )

    def _start(self) -> None:
        self._open(self._proxy)
        for server in self._servers:
            if self._stops == 0:
                server.start()

    def _look(self) -> None:
        for member in (self._proxy, *self._servers):
            member.look()
        if all(server.has_never_worked for server in self._servers):
            raise ServerError(f"No server has become ready; {self._servers[0].failure}")
        self._follow([server for server in self._servers if server.is_ready] if self._proxy.is_ready else [])

    def _follow(self, ready: list[Member]) -> None:
        if ready == self._ready:
            return
        new = [f"{server.plan.name} is process {server.pid}" for server in ready if server not in self._ready]
        self._ready = ready
        logger.info("%s", "; ".join([f"{len(ready)} of {len(self._servers)} servers take sessions", *new]))
        self._on_change(ready)

    def _end(self, stage: Sequence[Member], later: Sequence[Member]) -> None:
        """The servers bound their drain; the proxy goes on for the sessions that run."""
        self._follow([])
        super()._end(stage, later)
