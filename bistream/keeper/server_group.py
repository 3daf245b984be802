"""Several servers on one host, and the proxy before them: all are kept running, and drained together.

A server that ends is started again; until it is ready, the proxy sends sessions to the others. So one server can be exchanged at a time:
SIGTERM to its keeper drains it, and its successor takes its place. When no server has ever been ready and all have failed, the operator has
to act, and the group ends with the reason. Called by ``scripts/serve_gpus.py``.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Sequence
from types import FrameType

from bistream.keeper.group_member import Member
from bistream.keeper.host import ServerError

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 0.1
PROXY_START_TIMEOUT_S = 60.0
PROXY_END_TIMEOUT_S = 5.0  # its streams have ended before
HURRIED_TIMEOUT_S = 20.0  # for servers that end at once, to tell their sessions


class ServerGroup:
    """on_change: called with the members that take sessions, whenever these are others. pause, clock: for tests."""

    def __init__(
        self,
        servers: Sequence[Member],
        proxy: Member,
        on_change: Callable[[list[Member]], None] = lambda ready: None,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._servers = servers
        self._proxy = proxy
        self._on_change = on_change
        self._pause = pause
        self._clock = clock
        self._ready: list[Member] = []
        self._stops = 0

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

    def stop(self) -> None:
        """The first call ends ``run`` once the running sessions have ended, the second at once. For signal handlers and any thread."""
        self._stops += 1

    def handle_signals(self) -> None:
        def handler(number: int, frame: FrameType | None) -> None:
            self.stop()

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, handler)

    def run(self) -> None:
        """Serve until ``stop``. Raises ``ServerError`` when the proxy cannot be opened, or no server has ever been ready."""
        try:
            self._open_proxy()
            for server in self._servers:
                if self._stops == 0:
                    server.start()
            while self._stops == 0:
                self._look()
                self._pause(LOOK_INTERVAL_S)
            self._drain()
        finally:
            self._follow([])
            for server in self._servers:
                server.kill()
            self._proxy.ask_to_end()
            self._proxy.wait(PROXY_END_TIMEOUT_S)
            self._proxy.kill()

    def _open_proxy(self) -> None:
        """Before the servers, whose start may take minutes: a port in use is told at once."""
        self._proxy.start()
        deadline = self._clock() + PROXY_START_TIMEOUT_S
        while self._stops == 0 and not self._proxy.is_ready:
            self._proxy.look()
            if self._proxy.failure:
                raise ServerError(f"The proxy cannot start: {self._proxy.failure}")
            if self._clock() > deadline:
                raise ServerError(f"The proxy was not open after {PROXY_START_TIMEOUT_S:.0f} s; the reason is in the lines above.")
            self._pause(LOOK_INTERVAL_S)

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

    def _drain(self) -> None:
        """Until every server has ended; they bound it. The proxy goes on for the sessions that run."""
        self._follow([])
        logger.info("draining all servers")
        self._ask_servers()
        asked, give_up_at = 1, float("inf")
        while any(server.is_running for server in self._servers) and self._clock() < give_up_at:
            if self._stops > asked:
                asked = self._stops
                give_up_at = self._clock() + HURRIED_TIMEOUT_S
                self._ask_servers()
            if not self._proxy.is_running:
                self._proxy.look()
            self._pause(LOOK_INTERVAL_S)

    def _ask_servers(self) -> None:
        for server in self._servers:
            server.ask_to_end()
