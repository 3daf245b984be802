"""Who may ask: API keys in all forms in which clients send them, origins of browsers, and sockets counted by address. No framework."""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from bistream.errors import BusyError
from gateway.keys import Keys
from interfaces.core.errors import UnauthenticatedError
from interfaces.core.service import Caller

KEY_HEADERS = ("authorization", "x-api-key", "xi-api-key")
SUBPROTOCOLS = ("token", "bearer")  # before the key, in the list of subprotocols


@dataclass(frozen=True)
class Identity:
    """subprotocol: what a WebSocket is accepted with."""

    caller: Caller
    subprotocol: str | None


class Access:
    def __init__(self, keys: Keys | None, allowed_origins: Collection[str], max_sockets: int, sockets_per_address: int) -> None:
        self._keys = keys
        self._allowed_origins = frozenset(allowed_origins)
        self._max_sockets = max_sockets
        self._sockets_per_address = sockets_per_address
        self._sockets: Counter[str] = Counter()
        self.all_left = asyncio.Event()  # set while no socket is open
        self.all_left.set()

    @property
    def open_sockets(self) -> int:
        return self._sockets.total()

    def identify(self, headers: Mapping[str, str], address: str, subprotocols: Iterable[str] = ()) -> Identity:
        """headers: with lower-case names. Raises ``UnauthenticatedError``."""
        offered = [name.strip() for name in subprotocols]
        scheme = next((name for name in offered if name.lower() in SUBPROTOCOLS), None)
        found = dict(headers)
        if scheme is not None and len(offered) > 1 and "authorization" not in found:
            found["authorization"] = f"Bearer {offered[offered.index(scheme) + 1 :][0] if offered[-1] != scheme else ''}"
        if self._keys is None:
            return Identity(Caller(None, network_of(address)), scheme)
        try:
            return Identity(Caller(self._keys.name_of(found), network_of(address)), scheme)
        except UnauthenticatedError:
            raise UnauthenticatedError(
                "No valid API key came with the request; send one as `Authorization: Bearer KEY`, `xi-api-key: KEY` or `X-API-Key: KEY`."
            ) from None

    def wants_key_in_message(self, headers: Mapping[str, str], subprotocols: Iterable[str]) -> bool:
        """Whether a key is wanted and none came yet, right or wrong."""
        return self._keys is not None and not any(headers.get(name) for name in KEY_HEADERS) and not list(subprotocols)

    def allows_origin(self, origin: str | None, host: str | None) -> bool:
        """A page of another site must not use a gateway that its visitor can reach; clients other than browsers send no origin."""
        if origin is None or origin in self._allowed_origins or "*" in self._allowed_origins:
            return True
        try:
            return host is not None and urlsplit(origin).netloc == host
        except ValueError:  # no address at all
            return False

    def enter(self, caller: Caller) -> None:
        """A socket opens. Raises ``BusyError``."""
        taken = ((self.open_sockets, self._max_sockets), (self._sockets[caller.address], self._sockets_per_address))
        if any(limit and count >= limit for count, limit in taken):
            raise BusyError("Too many WebSockets are open; close some, or try again in 5.0 s.")
        self._sockets[caller.address] += 1
        self.all_left.clear()

    def leave(self, caller: Caller) -> None:
        self._sockets[caller.address] -= 1
        if self._sockets[caller.address] <= 0:
            del self._sockets[caller.address]
        if not self._sockets:
            self.all_left.set()


def network_of(address: str) -> str:
    """An IPv6 network of 64 bits counts as one address."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(parsed.ipv4_mapped or ipaddress.ip_network((parsed, 64), strict=False).network_address)
    return str(parsed)
