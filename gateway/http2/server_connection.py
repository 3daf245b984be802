"""A client's connection: its calls are let in, counted for its address, and end with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

import grpc

from gateway.budget import Budget
from gateway.http2.connection import Connection
from gateway.http2.fields import Malformed, RawFields, check_trailers, is_grpc, request_fields, timeout_s
from gateway.http2.frames import DEFAULT_MAX_FRAME, DEFAULT_WINDOW, PREFACE, ErrorCode, Flag, Setting, Violation, header_block, reset
from gateway.http2.server_call import Handler, ServerCall, refusal_block, run_call
from gateway.http2.stream import Stream
from gateway.http2.toll import Toll

HANDSHAKE_TIMEOUT_S = 10.0
IDLE_TIMEOUT_S = 600.0  # of a connection without calls
UNUSED_TIMEOUT_S = 60.0  # of one that never had a call
CONNECTION_WINDOW = 1024 * 1024
ADDRESS_BURST, ADDRESS_PER_SECOND = 20_000.0, 5_000.0  # the toll of all connections of an address
CALL_TOKENS, CONNECTION_TOKENS = 20.0, 20.0  # what they cost beside a frame, in frames
INPUT_SHARE = 4  # an address may hold this part of what all clients may
_NOT_GRPC = header_block([(b":status", b"415")])


@dataclass
class ServerSettings:
    """max_streams: calls at a time of one connection. kept_headers: of the client's, those that the calls shall have."""

    max_streams: int
    calls_per_address: int  # 0: no limit
    max_calls: int  # of all clients
    max_message_bytes: int
    busy: str  # what a call over a limit is told
    kept_headers: frozenset[bytes] = frozenset()


class Address:
    """What the connections of one address share."""

    def __init__(self, budget: Budget, clock: Callable[[], float]) -> None:
        self.toll = Toll(ADDRESS_BURST, ADDRESS_PER_SECOND, clock)
        self.budget = Budget(budget.limit // INPUT_SHARE, budget)
        self.calls = 0


@dataclass
class Shared:
    """What the connections of a server share. budget: of messages that were not read yet."""

    handler: Handler
    settings: ServerSettings
    budget: Budget
    connections: set[ServerConnection] = field(default_factory=set)
    calls: int = 0
    addresses: WeakValueDictionary[str, Address] = field(default_factory=WeakValueDictionary)

    def address(self, peer: str, loop: asyncio.AbstractEventLoop) -> Address:
        """The same for the same peer. A timer keeps it for a while, so that a new connection has the debts of the last one."""
        found = self.addresses.get(peer)
        if found is None:
            found = self.addresses[peer] = Address(self.budget, loop.time)
        loop.call_later(ADDRESS_BURST / ADDRESS_PER_SECOND, id, found)
        return found


class ServerConnection(Connection):
    """peer: its address, as it is counted. on_end: called once, when the connection is gone."""

    def __init__(self, shared: Shared, peer: str, on_end: Callable[[], None]) -> None:
        super().__init__(DEFAULT_WINDOW, CONNECTION_WINDOW, DEFAULT_MAX_FRAME, is_trusted=False)
        self.peer = peer
        self._shared = shared
        self._address = shared.address(peer, self._loop)
        self.address_toll = self._address.toll
        self._on_end = on_end
        self._has_preface = False
        self._is_leaving = False
        self._calls: dict[Stream, tuple[ServerCall, asyncio.Task[None], asyncio.TimerHandle | None]] = {}
        self._used_at = self._loop.time()
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def calls(self) -> int:
        return len(self._calls)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._shared.connections.add(self)
        ssl = transport.get_extra_info("ssl_object")
        if ssl is not None and ssl.selected_alpn_protocol() != "h2":  # RFC 9113, 3.2; a client of another protocol was led here
            self.abort()
            return
        self._address.toll.take(CONNECTION_TOKENS)
        self._deadline = self._loop.call_later(HANDSHAKE_TIMEOUT_S, self._check_handshake)
        self.start({Setting.MAX_CONCURRENT_STREAMS: self._shared.settings.max_streams})

    def _check_handshake(self) -> None:
        if not self.has_settings:
            self.abort()

    def skip_preface(self, data: bytes) -> bytes | None:
        if self._has_preface:
            return data
        if data[: len(PREFACE)] != PREFACE[: len(data)]:
            self.abort()  # not HTTP/2: there is no way to say so
            return b""
        if len(data) < len(PREFACE):
            return None
        self._has_preface = True
        return data[len(PREFACE) :]

    def on_block(self, stream_id: int, fields: RawFields, ended: bool) -> None:
        if stream_id % 2 == 0:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "a stream of the server's")
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._take_trailers(stream, fields, ended)
        elif stream_id > self.last_stream_id:  # else for a call that has ended
            self.last_stream_id = stream_id
            self._take_call(stream_id, fields, ended)

    def _take_trailers(self, stream: Stream, fields: RawFields, ended: bool) -> None:
        if not ended:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "headers in the midst of a stream")
        try:
            stream.take_end()
            check_trailers(fields)
        except Malformed:
            stream.abort(ErrorCode.PROTOCOL_ERROR)

    def _take_call(self, stream_id: int, fields: RawFields, ended: bool) -> None:
        shared, settings, address = self._shared, self._shared.settings, self._address
        address.toll.take(CALL_TOKENS)
        if self._is_leaving or len(self._calls) >= settings.max_streams:
            self.send(reset(stream_id, ErrorCode.REFUSED_STREAM))
            return
        try:
            known = request_fields(fields, settings.kept_headers)
        except Malformed:
            self.send(reset(stream_id, ErrorCode.PROTOCOL_ERROR))
            return
        if known[":method"] != "POST" or not is_grpc(known.get("content-type", "")):
            self._refuse(stream_id, _NOT_GRPC, ended)
        elif shared.calls >= settings.max_calls or 0 < settings.calls_per_address <= address.calls:
            self._refuse(stream_id, refusal_block(grpc.StatusCode.RESOURCE_EXHAUSTED, settings.busy), ended)
        else:
            self._open(stream_id, known, ended)

    def _refuse(self, stream_id: int, block: bytes, ended: bool) -> None:
        self.send_headers(stream_id, block, Flag.END_STREAM)
        if not ended:
            self.send(reset(stream_id, ErrorCode.NO_ERROR))

    def _open(self, stream_id: int, fields: dict[str, str], ended: bool) -> None:
        shared = self._shared
        stream = Stream(self, stream_id, shared.settings.max_message_bytes, self._address.budget)
        stream.headers = fields
        if "content-length" in fields:
            stream.expected_bytes = int(fields["content-length"])
        self.streams[stream_id] = stream
        if ended:
            try:
                stream.take_end()
            except Malformed:
                stream.abort(ErrorCode.PROTOCOL_ERROR)
                return
        call = ServerCall(stream, self.peer, self.send_headers)
        seconds = timeout_s(fields.get("grpc-timeout"))
        timer = None if seconds is None else self._loop.call_later(seconds, self._end_late, call)
        task = self._loop.create_task(run_call(shared.handler, call))
        self._calls[stream] = (call, task, timer)
        shared.calls += 1
        self._address.calls += 1
        task.add_done_callback(lambda _: self._on_done(stream))

    def _end_late(self, call: ServerCall) -> None:
        call.finish(grpc.StatusCode.DEADLINE_EXCEEDED, "The deadline of the call has passed.")

    def _on_done(self, stream: Stream) -> None:
        _, _, timer = self._calls.pop(stream)
        if timer is not None:
            timer.cancel()
        self._shared.calls -= 1
        self._address.calls -= 1
        self._used_at = self._loop.time()
        if self._is_leaving and not self._calls:
            self.close()

    def forget(self, stream: Stream) -> None:
        """A stream that is gone takes its handler with it, unless that is what has ended it."""
        super().forget(stream)
        _, task, _ = self._calls.get(stream, (None, None, None))
        if task is not None and task is not asyncio.current_task(self._loop):
            task.cancel()

    def on_check(self, now: float) -> None:
        limit = IDLE_TIMEOUT_S if self.last_stream_id else UNUSED_TIMEOUT_S
        if not self._calls and now - self._used_at > limit:
            self.close()

    def leave(self) -> None:
        """Take no new calls; close once those that run have ended."""
        self._is_leaving = True
        if self._calls:
            self.send_goaway()
        else:
            self.close()

    def end_calls(self, details: str) -> None:
        """Every call that is left ends with ``UNAVAILABLE``."""
        for call, _, _ in list(self._calls.values()):
            call.finish(grpc.StatusCode.UNAVAILABLE, details)

    def on_lost(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._shared.connections.discard(self)
        self._on_end()
