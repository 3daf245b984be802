"""Who may ask: API keys in all forms in which clients send them, hosts and origins of browsers, and sockets by client. No framework."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from bistream.errors import UnauthenticatedError
from gateway.admission import host_of
from gateway.keys import HEADERS, Keys, key_in
from interfaces.core.caller import Caller
from interfaces.core.shares import Places
from interfaces.settings import InterfaceLimits

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
ADDRESS_HEADER = "x-client-address"  # a proxy sets it, in place of what the client may have sent
SECRET_HEADER = "x-voice-secret"  # or in the place of an API key, where none are wanted: vendors' clients can send that
SUBPROTOCOLS = ("token", "bearer")  # before the key, in the list of subprotocols; percent-encoded, since browsers take no / and no = there


@dataclass(frozen=True)
class Identity:
    """subprotocol: what a WebSocket is accepted with."""

    caller: Caller
    subprotocol: str | None


class Access:
    def __init__(
        self,
        keys: Keys | None,
        limits: InterfaceLimits,
        origins: Collection[str] = (),
        hosts: Collection[str] = (),
        is_behind_proxy: bool = False,
    ) -> None:
        """origins, hosts: that are let in, ``*`` for all of them; hosts beside the names of loopback, ``*.NAME`` for those under a name."""
        self._keys = keys
        self._origins = frozenset(origins)
        self._hosts = frozenset((*LOOPBACK, *(host.lower() for host in hosts)))
        self._is_behind_proxy = is_behind_proxy
        self._sockets = Places("WebSockets", limits.max_sockets, limits.share)
        self.all_left = asyncio.Event()  # set while no socket is open
        self.all_left.set()

    @property
    def open_sockets(self) -> int:
        return self._sockets.taken

    def address_of(self, headers: Mapping[str, str], peer: str) -> str:
        """Where a request comes from, as it is counted. peer: of the connection."""
        return host_of(headers.get(ADDRESS_HEADER, peer) if self._is_behind_proxy else peer)

    def identify(self, headers: Mapping[str, str], address: str, subprotocols: Iterable[str] = ()) -> Identity:
        """headers: with lower-case names. address: as of ``address_of``. Raises ``UnauthenticatedError``."""
        offered = [name.strip() for name in subprotocols]
        scheme = next((name for name in offered if name.lower() in SUBPROTOCOLS), None)
        found = dict(headers)
        if scheme is not None and len(offered) > 1 and "authorization" not in found:
            key = offered[offered.index(scheme) + 1 :][0] if offered[-1] != scheme else ""
            found["authorization"] = f"Bearer {unquote(key)}"
        if self._keys is None:
            return Identity(Caller(None, address, secret=_secret_in(found)), scheme)
        try:
            return Identity(Caller(self._keys.name_of(found), address), scheme)
        except UnauthenticatedError:
            raise UnauthenticatedError(
                "No valid API key came with the request; send one as `Authorization: Bearer KEY`, `xi-api-key: KEY` or `X-API-Key: KEY`."
            ) from None

    def wants_key_in_message(self, headers: Mapping[str, str], subprotocols: Iterable[str]) -> bool:
        """Whether a key is wanted and none came yet, right or wrong."""
        return self._keys is not None and not any(headers.get(name) for name in HEADERS) and not list(subprotocols)

    def allows_origin(self, origin: str | None, host: str | None) -> bool:
        """A page of another site must not use a gateway that its visitor can reach; clients other than browsers send no origin."""
        if origin is None or origin in self._origins or "*" in self._origins:
            return True
        try:
            return host is not None and urlsplit(origin).netloc == host
        except ValueError:  # no address at all
            return False

    def allows_host(self, host: str | None) -> bool:
        """host: the header ``Host``. A page whose own name was made to stand for this machine's address names itself there."""
        if "*" in self._hosts:
            return True
        name = _name_in(host or "")
        return name in self._hosts or any(one.startswith("*.") and name.endswith(one[1:]) for one in self._hosts)

    def enter(self, caller: Caller) -> None:
        """A socket opens. Raises ``BusyError``."""
        self._sockets.take(caller.holders)
        self.all_left.clear()

    def leave(self, caller: Caller) -> None:
        self._sockets.give_back(caller.holders)
        if not self._sockets.taken:
            self.all_left.set()


def _secret_in(headers: Mapping[str, str]) -> str | None:
    return headers.get(SECRET_HEADER) or key_in(headers) or None


def _name_in(host: str) -> str:
    """Without the port and the dot at the end."""
    name, _, port = host.lower().rpartition(":")
    return (name if name and port.isdecimal() else host.lower()).removesuffix(".")
