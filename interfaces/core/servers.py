"""The bistream servers behind this process: which one takes the next session. One that does not answer is left out and asked again."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import replace
from http.client import HTTPException
from typing import Any

from tritonclient.grpc import service_pb2

from bistream.client.asyncio_client import AsyncBistreamClient, AsyncClientSession
from bistream.client.connection import INSECURE, ClientSecurity
from bistream.client.segments import MAX_CHARS
from bistream.config import RuntimeConfig
from bistream.contract.audio import SYNTHETIC, UPSTREAM_SAMPLE_RATE, UPSTREAM_TOKENS_PER_SECOND
from bistream.contract.fields import COSYVOICE2_BISTREAM
from bistream.contract.voices import ListedVoice
from bistream.errors import BistreamError, BusyError, NotServedError, ShuttingDownError, UnauthenticatedError, WrongCallError
from interfaces.core.errors import NO_SERVER, UnreachableError
from interfaces.core.facts import ServerFacts, ask_facts, with_voices
from interfaces.core.load import ServerLoad, parse_load
from interfaces.core.quiet_log import Lines
from interfaces.core.trace import Trace
from interfaces.core.values import Values
from interfaces.core.voice import Voice

logger = logging.getLogger("interfaces")

CHECK_INTERVAL_S = 1.0
CHECK_TIMEOUT_S = 2.0
VOICES_INTERVAL_S = 5.0  # voices may be registered while a server runs
BUSY_S = 0.5  # for which a server that was full is asked last, where it names no time
MAX_BUSY_S = 5.0
MAX_UNREAD_S = RuntimeConfig.max_unread_audio_s + 30.0  # of audio kept for a client that reads more slowly than it is made
MAX_PAGE_BYTES = 4 * 1024 * 1024
_REFUSALS = Lines(1)
_DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Server:
    """One server: its client, and what is known of it."""

    def __init__(self, address: str, security: ClientSecurity = INSECURE) -> None:
        """address: HOST:PORT of gRPC, and /PORT of the keeper's health port where it is known."""
        self.name = address
        self.address, _, health_port = address.partition("/")
        self._metrics_url = f"http://{self.address.rpartition(':')[0]}:{health_port}/metrics" if health_port else None
        self.load: ServerLoad | None = None  # None: not known
        self.client = AsyncBistreamClient(self.address, security=security, keeps_channel=True, max_unread_s=MAX_UNREAD_S)
        self.facts = ServerFacts()
        self.open_sessions = 0
        self.is_ready: bool | None = None  # None: not asked yet
        self.reason = ""  # why it is not ready, for the operator
        self.busy_until = 0.0
        self._facts_at_s: float | None = None  # None: to be asked for anew

    def session(self, trace: Trace, voice: Voice, text: str, is_end: bool, options: Values) -> AsyncClientSession:
        """The session begins where it is entered. options: as ``SpeechOptions.values``."""
        more: dict[str, Any] = dict(options)
        session = self.client.start(
            reference_wav=voice.samples,
            reference_text=voice.transcript,
            speaker_id=voice.speaker_id,
            text=text,
            is_end=is_end,
            session_id=trace.session_id(),
            **more,
        )
        session.metadata.update(trace.metadata())
        return session

    @property
    def expected_load(self) -> float:
        """Of servers whose load is not known, our own sessions count."""
        return (self.load or ServerLoad()).expected(self.open_sessions)

    async def check(self) -> bool:
        """Whether it takes sessions, as it says itself; and ``load``."""
        self.reason, self.load = await asyncio.gather(self._ask(), self._read_load())
        if not self.reason and self.load is not None and not self.load.is_ready:
            self.reason = "it is starting, restarting or draining"
        if self.reason:
            self._facts_at_s = None  # whatever comes back may be another checkpoint
        else:
            await self._read_facts()
        return not self.reason

    async def _read_facts(self) -> None:
        """Once after each connection, the voices now and then. Those known before stay where the server does not answer."""
        now = time.monotonic()
        if self._facts_at_s is not None and now - self._facts_at_s < VOICES_INTERVAL_S:
            return
        asked = (
            ask_facts(self.client, CHECK_TIMEOUT_S) if self._facts_at_s is None else with_voices(self.facts, self.client, CHECK_TIMEOUT_S)
        )
        self._facts_at_s = now
        try:
            self.facts = await asked
            self.client.told_sample_rate = self.facts.sample_rate
        except (BistreamError, OSError, ValueError) as error:  # TimeoutError is an OSError
            logger.debug("the server %s does not say what it has: %s", self.address, error)

    async def _read_load(self) -> ServerLoad | None:
        if self._metrics_url is None:
            return None
        own_sessions = self.open_sessions
        try:
            return parse_load(await asyncio.to_thread(_read_page, self._metrics_url), own_sessions)
        except (OSError, ValueError, HTTPException):
            return None

    async def _ask(self) -> str:
        """Why it takes no sessions; empty: it does. The model is asked for, because every gate answers for itself without an API key."""
        question, kind = service_pb2.ModelReadyRequest(name=COSYVOICE2_BISTREAM.name), service_pb2.ModelReadyResponse
        try:
            is_ready = bool((await self.client.ask("ModelReady", question, kind, CHECK_TIMEOUT_S)).ready)
            return "" if is_ready else "it is starting, restarting or draining"
        except TimeoutError:
            return "it has not answered in time"
        except (BistreamError, OSError) as error:
            return _for_operator(error)


class Servers:
    """``choose``, then ``refused`` where it did not take the session. Checks run in ``watch``.

    A name with several addresses (a headless service) stands for as many servers, and is looked up at each check.
    """

    def __init__(self, addresses: Sequence[str], security: ClientSecurity = INSECURE, now: Callable[[], float] = time.monotonic) -> None:
        """addresses: as of ``Server``. security: towards all of them."""
        self._names = tuple(addresses)
        self._security = security
        self.all = [self._server(address, address) for address in addresses]
        self._leaving: list[Server] = []  # no longer under their name, with sessions that go on
        self._now = now

    def _server(self, address: str, name: str) -> Server:
        """name: of the command line, whose host a certificate must have."""
        return Server(address, replace(self._security, server_name=_host_of(name)))

    def any_ready(self) -> bool:
        return any(server.is_ready is True for server in self.all)

    def have_failed(self) -> bool:
        """Whether each was asked and takes no sessions."""
        return all(server.is_ready is False for server in self.all)

    @property
    def voices(self) -> list[ListedVoice]:
        """That some server has by name, each once; the default of the first server that has one comes first."""
        named: dict[str, ListedVoice] = {}
        for server in self.all:
            for voice in server.facts.voices:
                named.setdefault(voice.name, voice)
        return list(named.values())

    @property
    def languages(self) -> frozenset[str]:
        """That every server speaks or may speak; empty: no restriction is known."""
        restricted = [server.facts.languages for server in self.all if server.facts.languages]
        return frozenset.intersection(*restricted) if restricted else frozenset()

    @property
    def can_be_instructed(self) -> bool:
        """Whether none is known to read an instruction aloud."""
        return all(server.facts.can_be_instructed for server in self.all)

    @property
    def max_text_chars(self) -> int:
        """Of a session on any of them."""
        return min((server.facts.max_text_chars for server in self.all), default=MAX_CHARS)

    @property
    def sample_rate(self) -> int:
        """Of the audio of all of them: one with another rate is never chosen."""
        return next((rate for server in self.all if (rate := server.facts.sample_rate)), UPSTREAM_SAMPLE_RATE)

    @property
    def comment(self) -> str:
        """Of files of their audio, if any of them marks it."""
        return SYNTHETIC if any(server.facts.is_marked for server in self.all) else ""

    @property
    def tokens_per_second(self) -> int:
        """Of the speech of the first one."""
        return self.all[0].facts.tokens_per_second if self.all else UPSTREAM_TOKENS_PER_SECOND

    def choose(self, tried: Sequence[Server] = (), speaker_id: str | None = None) -> Server | None:
        """Not known to be unready or to lack this voice, not lately full, with the lowest load; None: all were tried."""
        now = self._now()
        left = [server for server in self.all if server not in tried and server.facts.sample_rate in (None, self.sample_rate)]
        return min(
            left,
            key=lambda server: (server.is_ready is False, server.facts.lacks(speaker_id), server.busy_until > now, server.expected_load),
            default=None,
        )

    def refused(self, server: Server, error: BaseException) -> None:
        if isinstance(error, BusyError):
            server.busy_until = self._now() + min(error.retry_after_s or BUSY_S, MAX_BUSY_S)
        elif isinstance(error, ConnectionError | ShuttingDownError | UnauthenticatedError):
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
        looked_up = zip(self._names, await asyncio.gather(*map(addresses_of, self._names)), strict=True)
        found = {address: name for name, addresses in looked_up for address in addresses}
        known = {server.name: server for server in self.all}
        if found and set(found) != set(known):
            self.all = [known.get(address) or self._server(address, name) for address, name in found.items()]
            self._leaving += [server for server in known.values() if server not in self.all]
        for server in [server for server in self._leaving if not server.open_sessions]:
            self._leaving.remove(server)
            await server.client.close()

    async def _check(self, server: Server) -> None:
        was_ready, before = server.is_ready, server.reason
        server.is_ready = await server.check()
        if server.is_ready and not was_ready:
            logger.info("the server %s takes sessions", server.address)
        elif not server.is_ready and (was_ready is not False or server.reason != before):
            logger.warning("the server %s takes no sessions: %s", server.address, server.reason.rstrip("."))

    async def close(self) -> None:
        await asyncio.gather(*(server.client.close() for server in (*self.all, *self._leaving)))


async def addresses_of(name: str) -> list[str]:
    """The servers that HOST:PORT[/PORT] stands for; itself where the host has one address or is not found now."""
    address, slash, health_port = name.partition("/")
    port = int(address.rpartition(":")[2])
    try:
        found = await asyncio.get_running_loop().getaddrinfo(_host_of(name), port, type=socket.SOCK_STREAM)
    except OSError:
        return [name]
    hosts = sorted({str(where[0]) for family, _, _, _, where in found if family == found[0][0]})
    if len(hosts) < 2:
        return [name]
    return [f"{f'[{one}]' if ':' in one else one}:{port}{slash}{health_port}" for one in hosts]


def _host_of(name: str) -> str:
    return name.partition("/")[0].rpartition(":")[0].strip("[]")


def _read_page(url: str) -> str:
    with _DIRECTLY.open(url, timeout=CHECK_TIMEOUT_S) as answer:
        return str(answer.read(MAX_PAGE_BYTES).decode("utf-8", "replace"))


def _for_operator(error: BaseException) -> str:
    """Of this process, where clients of the library are meant otherwise."""
    if isinstance(error, UnauthenticatedError):
        return "it wants an API key; set BISTREAM_API_KEY or --server-api-key to one of its keys"
    return str(error)


def may_go_elsewhere(error: BaseException) -> bool:
    """Whether another server may take what this one refused."""
    return isinstance(error, BusyError | ShuttingDownError | ConnectionError | UnauthenticatedError)


def as_answer(error: BaseException) -> BistreamError:
    """An error of the client library in a form for our own clients: without the address of a server, and without its words about what
    is between this process and it."""
    if isinstance(error, UnauthenticatedError | NotServedError | WrongCallError):
        if _REFUSALS.take("") is not None:  # each utterance meets it
            logger.error("a server refuses what this process sends: %s", _for_operator(error))
        return UnreachableError("The speech servers do not accept this gateway; its operator finds the reason in its log.")
    if isinstance(error, BistreamError):
        return error
    if isinstance(error, TimeoutError):
        return UnreachableError("The speech server has stopped answering; try again.")
    return UnreachableError(NO_SERVER)
