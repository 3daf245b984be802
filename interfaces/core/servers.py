"""The bistream servers behind this process: which one takes the next session. One that does not answer is left out and asked again."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException
from typing import Any

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from bistream.client.connection import ClientSecurity
from bistream.client.exchange import SessionExchange
from bistream.client.known_voices import KnownVoices
from bistream.client.opening import SessionStarts
from bistream.errors import BistreamError, BusyError, ShuttingDownError
from gateway.http2.client import CallFailed, ClientCall
from interfaces.core.errors import UnreachableError
from interfaces.core.link import Link
from interfaces.core.load import ServerLoad, parse_load
from interfaces.core.session import ServerSession
from interfaces.core.trace import Trace
from interfaces.core.voices import Voice

logger = logging.getLogger("interfaces")

CHECK_INTERVAL_S = 1.0
CHECK_TIMEOUT_S = 2.0
BUSY_S = 0.5  # for which a server that was full is asked last, where it names no time
MAX_BUSY_S = 5.0
MAX_PAGE_BYTES = 4 * 1024 * 1024
_DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class _SessionOn(SessionStarts[ServerSession]):
    """A session that begins on one stream."""

    def __init__(self, call: ClientCall, address: str, known_voices: KnownVoices) -> None:
        self.known_voices = known_voices
        self._call = call
        self._address = address

    def _open(self, exchange: SessionExchange, start: dict[str, Any]) -> ServerSession:
        return ServerSession(self._call, self._address, exchange, start)


class Server:
    """One server: its client, and what is known of it."""

    def __init__(self, address: str, api_key: str | None) -> None:
        """address: HOST:PORT of gRPC, and /PORT of the keeper's health port where it is known."""
        self.name = address
        self.address, _, health_port = address.partition("/")
        self._metrics_url = f"http://{self.address.rpartition(':')[0]}:{health_port}/metrics" if health_port else None
        self.load: ServerLoad | None = None  # None: not known
        self.link = Link(self.address, ClientSecurity(api_key).headers())
        self.open_sessions = 0
        self.is_ready: bool | None = None  # None: not asked yet
        self.busy_until = 0.0
        self._known_voices = KnownVoices()

    async def open_stream(self, trace: Trace) -> ClientCall:
        """For one session. Raises ``ConnectionError``."""
        return await self.link.call("ModelStreamInfer", trace.metadata())

    def session(
        self, call: ClientCall, trace: Trace, voice: Voice, text: str, is_end: bool, options: Mapping[str, int | float]
    ) -> ServerSession:
        """The session begins where it is entered. options: as ``SpeechOptions.values``."""
        more: dict[str, Any] = dict(options)
        return _SessionOn(call, self.address, self._known_voices).start(
            reference_wav=voice.samples,
            reference_text=voice.transcript,
            speaker_id=voice.speaker_id,
            text=text,
            is_end=is_end,
            session_id=trace.session_id(),
            **more,
        )

    @property
    def expected_load(self) -> float:
        """Of servers whose load is not known, our own sessions count."""
        return (self.load or ServerLoad()).expected(self.open_sessions)

    async def check(self) -> bool:
        """Whether it takes sessions, as it says itself; and ``load``."""
        is_ready, self.load = await asyncio.gather(self._is_ready(), self._read_load())
        return is_ready and (self.load is None or self.load.is_ready)

    async def _read_load(self) -> ServerLoad | None:
        if self._metrics_url is None:
            return None
        own_sessions = self.open_sessions
        try:
            return parse_load(await asyncio.to_thread(_read_page, self._metrics_url), own_sessions)
        except (OSError, ValueError, HTTPException):
            return None

    async def _is_ready(self) -> bool:
        question, kind = service_pb2.ServerReadyRequest(), service_pb2.ServerReadyResponse
        try:
            return bool((await self.link.ask("ServerReady", question, kind, CHECK_TIMEOUT_S)).ready)
        except (OSError, CallFailed, DecodeError):  # ConnectionError and TimeoutError are OSErrors
            return False


class Servers:
    """``choose``, then ``refused`` where it did not take the session. Checks run in ``watch``.

    A name with several addresses (a headless service) stands for as many servers, and is looked up at each check.
    """

    def __init__(self, addresses: Sequence[str], api_key: str | None = None, now: Callable[[], float] = time.monotonic) -> None:
        """addresses: as of ``Server``."""
        self._names = tuple(addresses)
        self._api_key = api_key
        self.all = [Server(address, api_key) for address in addresses]
        self._leaving: list[Server] = []  # no longer under their name, with sessions that go on
        self._now = now

    def any_ready(self) -> bool:
        return any(server.is_ready is True for server in self.all)

    def choose(self, tried: Sequence[Server] = ()) -> Server | None:
        """Not known to be unready, not lately full, with the lowest load; None: all were tried."""
        now = self._now()
        left = [server for server in self.all if server not in tried]
        return min(
            left,
            key=lambda server: (server.is_ready is False, server.busy_until > now, server.expected_load),
            default=None,
        )

    def refused(self, server: Server, error: BaseException) -> None:
        if isinstance(error, BusyError):
            server.busy_until = self._now() + min(error.retry_after_s or BUSY_S, MAX_BUSY_S)
        elif isinstance(error, ConnectionError | ShuttingDownError):
            server.is_ready = False

    async def watch(self) -> None:
        """For ever."""
        while True:
            await self.check()
            await asyncio.sleep(CHECK_INTERVAL_S)

    async def check(self) -> None:
        """All of them, once."""
        await self._look_up()
        await asyncio.gather(*(self._check(server) for server in self.all))

    async def _look_up(self) -> None:
        found = [address for addresses in await asyncio.gather(*map(addresses_of, self._names)) for address in addresses]
        known = {server.name: server for server in self.all}
        if found and set(found) != set(known):
            self.all = [known.get(address) or Server(address, self._api_key) for address in dict.fromkeys(found)]
            self._leaving += [server for server in known.values() if server not in self.all]
        for server in [server for server in self._leaving if not server.open_sessions]:
            self._leaving.remove(server)
            await server.link.close()

    async def _check(self, server: Server) -> None:
        was_ready, server.is_ready = server.is_ready, await server.check()
        if was_ready != server.is_ready:
            logger.info("the server %s %s", server.address, "takes sessions" if server.is_ready else "takes no sessions")

    async def close(self) -> None:
        await asyncio.gather(*(server.link.close() for server in (*self.all, *self._leaving)))


async def addresses_of(name: str) -> list[str]:
    """The servers that HOST:PORT[/PORT] stands for; itself where the host has one address or is not found now."""
    address, slash, health_port = name.partition("/")
    host, _, port = address.rpartition(":")
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except OSError:
        return [name]
    hosts = sorted({str(where[0]) for family, _, _, _, where in found if family == found[0][0]})
    if len(hosts) < 2:
        return [name]
    return [f"{f'[{one}]' if ':' in one else one}:{port}{slash}{health_port}" for one in hosts]


def _read_page(url: str) -> str:
    with _DIRECTLY.open(url, timeout=CHECK_TIMEOUT_S) as answer:
        return str(answer.read(MAX_PAGE_BYTES).decode("utf-8", "replace"))


def may_go_elsewhere(error: BaseException) -> bool:
    """Whether another server may take what this one refused."""
    return isinstance(error, BusyError | ShuttingDownError | ConnectionError)


def as_answer(error: BaseException) -> BistreamError:
    """An error of the client library in a form for our own clients: without the address of a server."""
    if isinstance(error, BistreamError):
        return error
    if isinstance(error, TimeoutError):
        return UnreachableError("The speech server has stopped answering; try again.")
    return UnreachableError("No speech server answers at the moment; try again in a few seconds.")
