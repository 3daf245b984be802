"""Random conversations over HTTP/2, against both roles of the gate: nothing is raised, no window is overstepped, nothing is left."""

from __future__ import annotations

import asyncio
from collections import Counter

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.http2 import server_connection
from gateway.http2.client import CallFailed, ClientCall, ClientConnection
from gateway.http2.frames import (
    DEFAULT_WINDOW,
    ErrorCode,
    Flag,
    Kind,
    Setting,
    frame,
    goaway,
    header_block,
    reset,
    settings_frame,
    window_update,
)
from tests.unit.gateway.marks import long
from tests.unit.gateway.wire import FIELDS, Frame, Server, Transport, Wire, call, data, headers, lost, message, run, settle, wait

NUMBERS = st.sampled_from((1, 1, 3, 3, 5, 7, 9, 0, 2, 2**31 - 1))
FLAGS = st.sampled_from((0, 0, 1, 4, 5, 8, 9, 0x20, 0x2D, 255))
PAYLOADS = st.one_of(
    st.binary(max_size=40),
    st.sampled_from((message(), message(b"size 70000"), message(b"none"), message(bytes(3000))[:900], b"\0\0\0\0\0" * 50, bytes(5))),
)
ODD_FIELDS = st.sampled_from(
    ((b"x", b"y"), (b"X", b"y"), (b":path", b"/"), (b"content-length", b"7"), (b"grpc-timeout", b"3S"), (b"te", b"x"))
)
INCREMENTS = st.sampled_from((0, 1, 1, 9, 1000, 70_000, 2**31 - 1))
SETTINGS = st.dictionaries(
    st.sampled_from((*Setting, 99)), st.sampled_from((0, 1, 5, 100, 16_384, 65_535, 10**6, 2**31 - 1, 2**32 - 1)), max_size=3
)
RANDOM_FRAMES = st.builds(frame, st.integers(0, 11), FLAGS, NUMBERS, st.binary(max_size=30))
FRAMES = st.one_of(
    NUMBERS.map(headers),
    st.builds(headers, NUMBERS, ODD_FIELDS),
    st.builds(lambda number, field: headers(number, fields=[field], flags=Flag.END_HEADERS | Flag.END_STREAM), NUMBERS, ODD_FIELDS),
    st.builds(data, NUMBERS, PAYLOADS, st.booleans()),
    st.builds(data, NUMBERS, PAYLOADS),
    NUMBERS.map(lambda number: call(number, b"hello", b"size 20000")),
    st.builds(lambda number, payload: frame(Kind.DATA, Flag.PADDED, number, b"\3" + payload + bytes(3)), NUMBERS, PAYLOADS),
    st.builds(window_update, NUMBERS, INCREMENTS),
    st.builds(reset, NUMBERS, st.sampled_from(ErrorCode)),
    SETTINGS.map(lambda values: settings_frame(values)),
    st.builds(goaway, NUMBERS, st.just(ErrorCode.NO_ERROR)),
    st.builds(lambda number: headers(number, flags=0) + frame(Kind.CONTINUATION, Flag.END_HEADERS, number), NUMBERS),
    RANDOM_FRAMES,
)
STEPS = st.one_of(
    FRAMES,
    FRAMES,
    FRAMES,
    st.binary(max_size=30),
    st.tuples(FRAMES, st.integers(0, 40), st.integers(0, 255)).map(
        lambda made: made[0][: made[1]] + bytes([made[2]]) + made[0][made[1] + 1 :]
    ),
    st.tuples(FRAMES, st.integers(0, 40)).map(lambda made: made[0][: made[1]]),
    st.sampled_from((0.0, 3.0, 30.0)),  # seconds pass
)


def check(wire: Wire) -> None:
    """What holds at every time; ``frames`` checks that whole frames are written."""
    wire.frames()
    connection = wire.connection
    assert connection.send_window >= 0 and len(connection._rest) <= 16_384 + 9
    assert all(stream.send_window < 2**31 for stream in connection.streams.values())
    assert connection._receive_window + connection._used == server_connection.CONNECTION_WINDOW


async def play(wire: Wire, steps: list[bytes | float]) -> None:
    for step in steps:
        if isinstance(step, float):
            await wait(step, 3.0)
        else:
            wire.send(step)
        if wire.transport.is_aborted:
            break
        await settle(2)
        check(wire)
    await settle()


def fuzz_server(steps: list[bytes | float]) -> None:
    async def test() -> None:
        server = Server(input_bytes=100_000)
        wire = server.open()
        await play(wire, steps)
        await lost(wire)
        server.check_empty()
        assert server.ended == 1

    run(test)


@settings(max_examples=120, deadline=None)
@given(st.lists(STEPS, max_size=25))
def test_any_frames_of_a_client_leave_nothing(steps: list[bytes | float]) -> None:
    fuzz_server(steps)


@long
@settings(max_examples=40_000, deadline=None)
@given(st.lists(STEPS, max_size=60))
def test_very_many_frames_of_clients_leave_nothing(steps: list[bytes | float]) -> None:
    fuzz_server(steps)


# Data never goes beyond what was allowed


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.sampled_from((10, 500, 7000, 40_000)), min_size=1, max_size=4),
    st.lists(st.tuples(st.sampled_from((0, 0, 1, 3, 5, 7)), st.integers(1, 30_000)) | st.integers(0, 50_000), max_size=30),
)
def test_no_window_is_overstepped_and_all_is_sent_in_the_end(sizes: list[int], grants: list[tuple[int, int] | int]) -> None:
    async def test() -> None:
        server = Server()
        wire = server.open()
        initial, connection = DEFAULT_WINDOW, DEFAULT_WINDOW
        granted: Counter[int] = Counter()
        sent: Counter[int] = Counter()
        numbers = [1 + 2 * index for index in range(len(sizes))]

        async def check() -> None:
            await settle(20)
            for found in wire.of(Kind.DATA):
                sent[found.stream] += len(found.payload)
                assert len(found.payload) <= 16_384
            assert sum(sent.values()) <= connection
            assert all(sent[number] <= max(highest[number], initial + granted[number]) for number in numbers)

        highest = Counter({number: initial for number in numbers})  # an initial window that shrinks takes nothing back
        for number, size in zip(numbers, sizes, strict=True):
            wire.send(headers(number), data(number, message(b"size %d" % size)))
        await check()
        for grant in grants:
            if isinstance(grant, int):
                initial = grant
                wire.send(settings_frame({Setting.INITIAL_WINDOW_SIZE: grant}))
            elif grant[0] == 0:
                connection += grant[1]
                wire.send(window_update(0, grant[1]))
            else:
                granted[grant[0]] += grant[1]
                if grant[0] in numbers:
                    wire.send(window_update(*grant))
            for number in numbers:
                highest[number] = max(highest[number], initial + granted[number])
            await check()
        wire.send(settings_frame({Setting.INITIAL_WINDOW_SIZE: 10**6}), window_update(0, 10**6))
        initial, connection = 10**6, connection + 10**6
        await check()
        assert [sent[number] for number in numbers] == [size + 5 for size in sizes]
        await lost(wire)

    run(test)


# A server that cannot be trusted

SERVER_FIELDS = [(b":status", b"200"), (b"content-type", b"application/grpc")]
STATUSES = st.sampled_from((b"0", b"14", b"99", b"\xb2", b"", b"-1", 5000 * b"9", b"x"))


def trailers(number: int, status: bytes) -> bytes:
    return headers(number, fields=[(b"grpc-status", status), (b"grpc-message", b"100%")], flags=Flag.END_HEADERS | Flag.END_STREAM)


SERVER_FRAMES = st.one_of(
    NUMBERS.map(lambda number: headers(number, fields=SERVER_FIELDS)),
    st.builds(trailers, NUMBERS, STATUSES),
    st.builds(data, NUMBERS, PAYLOADS, st.booleans()),
    st.builds(window_update, NUMBERS, INCREMENTS),
    st.builds(reset, NUMBERS, st.sampled_from(ErrorCode)),
    st.builds(goaway, NUMBERS, st.just(ErrorCode.NO_ERROR)),
    SETTINGS.map(lambda values: settings_frame(values)),
    RANDOM_FRAMES,
    st.binary(max_size=30),
    st.tuples(st.builds(data, NUMBERS, PAYLOADS), st.integers(0, 40)).map(lambda made: made[0][: made[1]]),
)


class Client:
    """A connection of ours to a server that the test plays, and calls on it: of each, how it ended."""

    def __init__(self) -> None:
        self.lost = 0
        self.connection = ClientConnection("server", self._on_lost)
        self.wire = Wire(self.connection, Transport())
        self.wire.send(settings_frame({}))
        self.ends: list[list[grpc.StatusCode | None]] = []
        self.tasks: list[asyncio.Task[None]] = []

    def _on_lost(self, connection: ClientConnection) -> None:
        self.lost += 1

    def call(self) -> ClientCall:
        made, ends = self.connection.call("/x/y"), []  # type: ignore[var-annotated]
        self.ends.append(ends)
        self.tasks.append(asyncio.create_task(self._follow(made, ends)))
        return made

    async def _follow(self, made: ClientCall, ends: list[grpc.StatusCode | None]) -> None:
        try:
            await made.write(bytes(1000))
            while await made.read() is not None:
                pass
            ends.append(None)
        except CallFailed as failure:
            ends.append(failure.status)
        finally:
            made.cancel()


def fuzz_client(frames: list[bytes]) -> None:
    async def test() -> None:
        client = Client()
        for _ in range(4):
            client.call()
        await settle()
        for step in frames:
            client.wire.send(step)
            await settle(2)
            client.wire.frames()
        await lost(client.wire)
        await asyncio.gather(*client.tasks)
        assert [len(ends) for ends in client.ends] == [1, 1, 1, 1] and client.lost == 1
        assert not client.connection.streams and client.connection._budget.used == 0

    run(test)


@settings(max_examples=120, deadline=None)
@given(st.lists(SERVER_FRAMES, max_size=20))
def test_every_call_ends_once_whatever_a_server_sends(frames: list[bytes]) -> None:
    fuzz_client(frames)


@long
@settings(max_examples=40_000, deadline=None)
@given(st.lists(SERVER_FRAMES, max_size=50))
def test_every_call_ends_once_whatever_many_servers_send(frames: list[bytes]) -> None:
    fuzz_client(frames)


def test_a_goaway_ends_the_calls_that_the_server_has_not_taken() -> None:
    async def test() -> None:
        client = Client()
        for _ in range(3):
            client.call()
        await settle()
        client.wire.send(goaway(3, ErrorCode.NO_ERROR))
        await settle()
        assert [len(ends) for ends in client.ends] == [0, 0, 1] and client.connection.is_leaving
        client.wire.send(trailers(1, b"0"), trailers(3, b"8"))
        await settle()
        assert client.ends == [[None], [grpc.StatusCode.RESOURCE_EXHAUSTED], [grpc.StatusCode.UNAVAILABLE]]
        await wait(20, 2.0)
        assert client.wire.transport.is_aborted  # a connection that is left is closed once its calls have ended

    run(test)


def test_a_server_that_breaks_the_protocol_or_falls_silent_ends_its_calls() -> None:
    async def test() -> None:
        for attack in (b"\0\0\0\x63\0\0\0\0", frame(Kind.PUSH_PROMISE, 4, 1, bytes(8)), data(9, b"x"), b"HTTP/1.1 400 Bad Request\r\n\r\n"):
            client = Client()
            client.call()
            await settle()
            client.wire.send(attack)
            await wait(30, 2.0)
            assert client.ends == [[grpc.StatusCode.UNAVAILABLE]] and client.lost == 1

    run(test)


def test_a_server_may_end_thousands_of_calls_at_once() -> None:
    async def test() -> None:
        client = Client()
        for _ in range(5000):
            client.call()
        await settle()
        client.wire.send(*(reset(number, ErrorCode.CANCEL) for number in range(1, 9999, 2)))
        await settle()
        assert not client.wire.transport.is_aborted and sum(map(len, client.ends)) == 4999
        await lost(client.wire)

    run(test)


def test_a_connection_whose_numbers_are_used_up_is_left() -> None:
    async def test() -> None:
        client = Client()
        client.connection._next_id = 2**31 - 3
        client.call()
        assert not client.connection.is_leaving
        client.call()
        assert client.connection.is_leaving and client.connection.last_stream_id == 2**31 - 1
        await settle()
        await lost(client.wire)

    run(test)


def test_a_message_over_the_limit_of_a_server_is_not_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.http2.client.MAX_MESSAGE_BYTES", 1000)

    async def test() -> None:
        client = Client()
        client.call()
        await settle()
        client.wire.send(headers(1, fields=SERVER_FIELDS), data(1, message(bytes(1001))[:100]))
        await settle()
        assert client.ends == [[grpc.StatusCode.UNAVAILABLE]] and not client.connection.streams
        await lost(client.wire)

    run(test)


def test_the_frames_of_the_tests_are_those_of_the_wire() -> None:
    async def test() -> None:
        server = Server()
        wire = server.open()
        wire.frames()
        wire.send(frame(Kind.HEADERS, Flag.END_HEADERS, 1, header_block(FIELDS)), data(1, message(), ended=True))
        await settle()
        assert wire.of(Kind.DATA) == [Frame(Kind.DATA, 0, 1, message())]
        await lost(wire)

    run(test)
