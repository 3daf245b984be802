"""Connections taken from a listening socket, for both doors: bounded in number, in all and for each address, from their first byte on.

The TLS handshake belongs to it: a server of the event loop's own counts a connection only after its handshake, and so bounds neither
the handshakes under way nor the files that they hold.
"""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gateway.admission import host_of
from gateway.settings import Limits

HANDSHAKE_TIMEOUT_S = 10.0
ACCEPTS_PER_TURN = 64
NO_FILES_PAUSE_S = 0.2  # after accept has failed for want of files
CONNECTIONS_PER_SECOND = 64.0  # new ones of an address; as many as it may have at once
MAX_ADDRESSES = 10_000  # remembered; beyond it, those without a connection are forgotten
MakeProtocol = Callable[[str, Callable[[], None]], asyncio.BaseProtocol]


@dataclass(slots=True)
class _Address:
    connections: int
    new_since: float  # when it will have had the right to all the connections it has made, at the steady rate


class Acceptor:
    """Makes a protocol for each connection that is let in: of its address as it is counted, and of what it must call at its end."""

    def __init__(self, listener: socket.socket, make_protocol: MakeProtocol, tls: ssl.SSLContext | None, limits: Limits) -> None:
        self.port: int = listener.getsockname()[1]
        self.connections = 0
        self._listener = listener
        self._make_protocol = make_protocol
        self._tls = tls
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._addresses: dict[str, _Address] = {}
        self._opening: set[asyncio.Task[None]] = set()
        self._is_stopped = False
        listener.setblocking(False)
        self._listen()

    def stop(self) -> None:
        """Take no more. Idempotent."""
        if not self._is_stopped:
            self._is_stopped = True
            self._loop.remove_reader(self._listener)
            self._listener.close()
            for task in list(self._opening):
                task.cancel()

    def _listen(self) -> None:
        if not self._is_stopped:
            self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                peer, address = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:
                continue
            except OSError:  # no files left
                self._loop.remove_reader(self._listener)
                self._loop.call_later(NO_FILES_PAUSE_S, self._listen)
                return
            host = host_of(str(address[0]))
            if not self._admit(host):
                peer.close()
                continue
            task = self._loop.create_task(self._open(peer, host))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    def _admit(self, host: str) -> bool:
        limit, now = self._limits.connections_per_address, self._loop.time()
        if self.connections >= self._limits.max_connections:
            return False
        if len(self._addresses) >= MAX_ADDRESSES:
            self._addresses = {name: one for name, one in self._addresses.items() if one.connections}
        address = self._addresses.setdefault(host, _Address(0, -math.inf))
        if limit:
            burst_s = max(1.0, limit / CONNECTIONS_PER_SECOND)
            new_since = max(address.new_since, now - burst_s) + 1 / CONNECTIONS_PER_SECOND
            if address.connections >= limit or new_since > now:
                return False
            address.new_since = new_since
        address.connections += 1
        self.connections += 1
        return True

    async def _open(self, peer: socket.socket, host: str) -> None:
        held = [host]

        def release() -> None:
            if held:
                self.connections -= 1
                self._addresses[held.pop()].connections -= 1

        options: dict[str, Any] = {} if self._tls is None else {"ssl": self._tls, "ssl_handshake_timeout": HANDSHAKE_TIMEOUT_S}
        try:
            peer.setblocking(False)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(lambda: self._make_protocol(host, release), peer, **options)
        except OSError:  # also a failed handshake, and one that took too long
            peer.close()
            release()
        except BaseException:
            peer.close()
            release()
            raise
