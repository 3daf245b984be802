"""Known attacks on HTTP/2 servers, each against a connection of the gate, and what is left afterwards: nothing."""

from __future__ import annotations

import asyncio
import struct

import pytest

from gateway.http2 import link, server_connection, stream
from gateway.http2.fields import Malformed, is_grpc, request_fields, timeout_s
from gateway.http2.frame_reader import CHEAP_FRAMES_BURST
from gateway.http2.frames import (
    DEFAULT_WINDOW,
    PREFACE,
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
from gateway.http2.server import ServerCall, ServerSettings
from tests.unit.gateway.wire import (
    FIELDS,
    SETTINGS,
    Frame,
    Server,
    Wire,
    call,
    data,
    echo,
    headers,
    lost,
    message,
    never_read,
    run,
    settle,
    wait,
)

BURST = int(CHEAP_FRAMES_BURST)
OPEN = headers(1)
ENDED = call(1, b"x")


async def works(wire: Wire, number: int = 1001) -> bool:
    """Whether a call on this connection is answered."""
    wire.frames()
    wire.send(call(number, b"still here"))
    await settle()
    return any(b"still here" in found.payload for found in wire.of(Kind.DATA))


# What breaks the protocol costs the connection

FATAL: dict[str, tuple[bytes, ErrorCode]] = {
    "a ping on a stream": (frame(Kind.PING, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    "a goaway on a stream": (frame(Kind.GOAWAY, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    "a short goaway": (frame(Kind.GOAWAY, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
    "a priority of no stream": (frame(Kind.PRIORITY, 0, 0, bytes(5)), ErrorCode.PROTOCOL_ERROR),
    "push of 2": (settings_frame({Setting.ENABLE_PUSH: 2}), ErrorCode.PROTOCOL_ERROR),
    "an acknowledgement first": (PREFACE + frame(Kind.SETTINGS, Flag.ACK, 0), ErrorCode.PROTOCOL_ERROR),
    "windows over the limit by a setting": (
        OPEN + window_update(1, 2**31 - 1 - DEFAULT_WINDOW) + settings_frame({Setting.INITIAL_WINDOW_SIZE: DEFAULT_WINDOW + 1}),
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    "a stream's window over the limit": (OPEN + 2 * window_update(1, 2**31 - 1), ErrorCode.FLOW_CONTROL_ERROR),
    "headers on an old even stream": (headers(9) + headers(2), ErrorCode.PROTOCOL_ERROR),
    "data on an even stream": (headers(9) + data(2, b"x"), ErrorCode.PROTOCOL_ERROR),
    "a reset of an even stream": (headers(9) + reset(2, ErrorCode.CANCEL), ErrorCode.PROTOCOL_ERROR),
    "a window of an even stream": (headers(9) + window_update(2, 1), ErrorCode.PROTOCOL_ERROR),
    "two ends": (headers(1, flags=Flag.END_HEADERS | Flag.END_STREAM) * 2, ErrorCode.STREAM_CLOSED),
    "2,700 settings": (frame(Kind.SETTINGS, 0, 0, struct.pack(">HI", 4, 1) * 2700), ErrorCode.ENHANCE_YOUR_CALM),
    "a table of 1 MB": (frame(Kind.HEADERS, 4, 1, b"\x3f\xe1\xff\x3f"), ErrorCode.COMPRESSION_ERROR),
    "an integer without end": (frame(Kind.HEADERS, 4, 1, b"\x3f" + 16_000 * b"\xff"), ErrorCode.COMPRESSION_ERROR),
    "fields that unpack to more than the limit": (
        frame(Kind.HEADERS, 4, 1, header_block([*FIELDS, *((b"a", b"") for _ in range(600))])),
        ErrorCode.COMPRESSION_ERROR,
    ),
    "fields from the table that unpack to more than the limit": (
        frame(Kind.HEADERS, 4, 1, b"\x40\x01a\x7f\xe1\x1e" + bytes(4000).replace(b"\0", b"v") + 5 * b"\xbe"),
        ErrorCode.COMPRESSION_ERROR,
    ),
}


@pytest.mark.parametrize("name", FATAL)
def test_a_broken_rule_costs_the_connection(name: str) -> None:
    attack, code = FATAL[name]

    async def test() -> None:
        server = Server(never_read)
        wire = server.open(greeting=b"" if attack.startswith(PREFACE) else PREFACE + settings_frame({}))
        wire.send(attack)
        assert wire.end == code
        await settle()
        server.check_empty()

    run(test)


FLOODS: dict[str, tuple[bytes, bytes]] = {  # what comes first, and what is repeated
    "windows of the connection": (b"", window_update(0, 1)),
    "windows of a stream": (OPEN, window_update(1, 1)),
    "windows of an ended stream": (ENDED, window_update(1, 1)),
    "data of a byte": (OPEN + data(1, b"\0\0\0\xff\0"), data(1, b"x")),
    "padding": (OPEN, frame(Kind.DATA, Flag.PADDED, 1, b"\x0f" + bytes(15))),
    "data on an ended stream": (ENDED, data(1, b"x")),
    "ends of an ended stream": (ENDED, data(1, b"", ended=True)),
    "headers of an ended stream": (ENDED, headers(1)),
    "priorities": (b"", frame(Kind.PRIORITY, 0, 1, bytes(5))),
    "pings": (b"", frame(Kind.PING, 0, 0, bytes(8))),
    "answered pings": (b"", frame(Kind.PING, Flag.ACK, 0, bytes(8))),
    "settings": (b"", settings_frame({})),
    "acknowledged settings": (b"", frame(Kind.SETTINGS, Flag.ACK, 0)),
    "goaways": (b"", goaway(0, ErrorCode.NO_ERROR)),
    "resets of an ended stream": (ENDED, reset(1, ErrorCode.CANCEL)),
    "unknown frames": (b"", frame(77, 0, 0)),  # type: ignore[arg-type]
    "continuations of a byte": (headers(1, flags=0), frame(Kind.CONTINUATION, 0, 1, b"\0")),
    "continuations without a byte": (headers(1, flags=0), frame(Kind.CONTINUATION, 0, 1)),
}


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_costs_the_connection(name: str) -> None:
    first, repeated = FLOODS[name]

    async def test() -> None:
        server = Server()
        wire = server.open()
        wire.send(first)
        await settle()
        wire.send(repeated * 3 * BURST)
        assert wire.end == ErrorCode.ENHANCE_YOUR_CALM
        await settle()
        server.check_empty()

    run(test)


@pytest.mark.parametrize("fields", [[*FIELDS, (b"a", 200 * b"v")], FIELDS[:1] * 300], ids=["long", "many"])
def test_large_header_blocks_are_dearer_than_small_ones(fields: list[tuple[bytes, bytes]]) -> None:
    async def test() -> None:
        server = Server()
        wire = server.open()
        wire.send(ENDED)
        await settle()
        sent = 0
        while not wire.transport.is_aborted:
            wire.send(headers(1, fields=fields))
            sent += 1
        assert sent < BURST / 1.9

    run(test)


@pytest.mark.parametrize("how", ["reset", "bad window", "malformed", "bad data"])
def test_resets_are_bounded_however_they_are_made(how: str) -> None:
    """CVE-2023-44487, and CVE-2025-8671, where the peer makes the server reset."""
    served: list[ServerCall] = []

    async def handler(call: ServerCall) -> None:
        served.append(call)
        await never_read(call)

    async def test() -> None:
        server = Server(handler)
        wire = server.open()
        for number in range(1, 20_001, 2):
            wire.send(
                {
                    "reset": headers(number) + reset(number, ErrorCode.CANCEL),
                    "bad window": headers(number) + window_update(number, 2**31 - 1),
                    "malformed": headers(number, (b"Upper", b"x")),
                    "bad data": headers(number, (b"content-length", b"1")) + data(number, b"xx"),
                }[how]
            )
            await asyncio.sleep(0)
            assert server.server.calls <= SETTINGS.max_streams
            if wire.transport.is_aborted:
                break
        assert wire.end is not None and len(served) <= BURST
        await settle()
        server.check_empty()

    run(test)


def test_an_address_that_owes_is_not_read_for_a_while_and_others_are() -> None:
    async def test() -> None:
        server = Server()
        other = server.open("10.0.0.2")
        wires = [server.open() for _ in range(30)]
        for wire in wires:
            wire.send(window_update(0, 1) * (BURST - 500))
        assert not any(wire.transport.is_aborted for wire in wires)  # none has done too much by itself
        assert not wires[-1].transport.is_reading and other.transport.is_reading
        assert await works(other)
        again = server.open()
        again.send(frame(Kind.PING, 0, 0, bytes(8)))
        assert not again.transport.is_reading  # a new connection does not begin without the debts
        await wait(10)
        assert wires[-1].transport.is_reading and again.transport.is_reading
        for wire in (*wires, other, again):
            await lost(wire)
        server.check_empty()

    run(test)


def test_pings_every_ten_seconds_and_windows_after_data_are_never_too_many() -> None:
    async def test() -> None:
        server = Server()
        wire = server.open()
        wire.send(headers(1))
        for number in range(3 * BURST):
            wire.send(data(1, message(b"piece")), window_update(0, 10), window_update(1, 10))
            if number % 100 == 0:
                wire.send(frame(Kind.PING, 0, 0, bytes(8)))
                await settle(4)
        assert not wire.transport.is_aborted and wire.transport.is_reading
        await lost(wire)

    run(test)


# What is malformed costs the call

MALFORMED: dict[str, list[tuple[bytes, bytes]]] = {
    "an upper-case name": [*FIELDS, (b"X-Api-Key", b"x")],
    "an empty name": [*FIELDS, (b"", b"x")],
    "a blank in a name": [*FIELDS, (b"a b", b"x")],
    "a colon in a name": [*FIELDS, (b"a:", b"x")],
    "a pseudo-header after a field": [*FIELDS, (b":authority", b"x")],
    "an unknown pseudo-header": [(b":status", b"200"), *FIELDS],
    "a pseudo-header twice": [(b":path", b"/other"), *FIELDS],
    "no method": FIELDS[1:],
    "no scheme": [FIELDS[0], *FIELDS[2:]],
    "no path": [*FIELDS[:2], FIELDS[3]],
    "an empty path": [*FIELDS[:2], (b":path", b""), FIELDS[3]],
    "connection": [*FIELDS, (b"connection", b"close")],
    "transfer-encoding": [*FIELDS, (b"transfer-encoding", b"chunked")],
    "upgrade": [*FIELDS, (b"upgrade", b"h2c")],
    "keep-alive": [*FIELDS, (b"keep-alive", b"x")],
    "proxy-connection": [*FIELDS, (b"proxy-connection", b"x")],
    "te": [*FIELDS, (b"te", b"gzip")],
    "NUL": [*FIELDS, (b"a", b"b\0")],
    "a line break": [*FIELDS, (b"a", b"b\r\nc: d")],
    "a blank before a value": [*FIELDS, (b"a", b" b")],
    "a blank after a value": [*FIELDS, (b"a", b"b\t")],
    "a line break in a pseudo-header": [*FIELDS[:2], (b":path", b"/a\nb"), FIELDS[3]],
    "a content-length that is no number": [*FIELDS, (b"content-length", b"+5")],
    "two content-lengths": [*FIELDS, (b"content-length", b"5"), (b"content-length", b"6")],
    "a connect": [(b":method", b"CONNECT"), (b":authority", b"x")],
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_request_costs_its_call_only(name: str) -> None:
    async def test() -> None:
        server = Server()
        wire = server.open()
        wire.frames()
        wire.send(headers(1, fields=MALFORMED[name]))
        assert [(found.stream, found.code) for found in wire.of(Kind.RST_STREAM, Kind.HEADERS)] == [(1, ErrorCode.PROTOCOL_ERROR)]
        assert await works(wire)
        await lost(wire)
        server.check_empty()

    run(test)


@pytest.mark.parametrize(("announced", "parts"), [(3, [b"1234"]), (5, [b"12", b""]), (0, [b"1"]), (4, [b"12", b"345"]), (1, None)])
def test_a_body_of_another_length_than_announced_costs_its_call(announced: int, parts: list[bytes] | None) -> None:
    async def test() -> None:
        server = Server()
        wire = server.open()
        wire.frames()
        if parts is None:
            wire.send(headers(1, (b"content-length", str(announced).encode()), flags=Flag.END_HEADERS | Flag.END_STREAM))
        else:
            wire.send(headers(1, (b"content-length", str(announced).encode())))
            wire.send(*(data(1, part, ended=part is parts[-1]) for part in parts))
        await settle()
        assert [(found.stream, found.code) for found in wire.of(Kind.RST_STREAM)] == [(1, ErrorCode.PROTOCOL_ERROR)]
        wire.send(headers(3, (b"content-length", str(len(message())).encode())), data(3, message(), ended=True))
        await settle()
        assert wire.of(Kind.DATA)[0].payload == message()
        await lost(wire)
        server.check_empty()

    run(test)


def test_trailers_end_a_call_and_pseudo_headers_in_them_cost_it() -> None:
    async def test() -> None:
        server = Server()
        wire = server.open()
        for number, field in ((1, (b"x-checksum", b"1")), (3, (b":path", b"/other"))):
            wire.send(headers(number), data(number, message()))
            wire.send(headers(number, fields=[field], flags=Flag.END_HEADERS | Flag.END_STREAM))
        await settle()
        found = wire.frames()
        assert [one.stream for one in found if one.kind == Kind.RST_STREAM] == [3]
        assert [one.stream for one in found if one.kind == Kind.HEADERS and one.flags & Flag.END_STREAM] == [1]
        await lost(wire)

    run(test)


def test_only_the_fields_that_are_needed_are_kept_and_those_that_come_twice_are_joined() -> None:
    fields = [*FIELDS, (b"x-api-key", b"a"), (b"x-api-key", b"b"), (b"x-big", 9000 * b"x")]
    found = request_fields(fields, frozenset({b"x-api-key"}))
    assert set(found) == {":method", ":scheme", ":path", "content-type", "x-api-key"} and found["x-api-key"] == "a, b"
    with pytest.raises(Malformed):
        request_fields([*FIELDS, FIELDS[0]], frozenset())


@pytest.mark.parametrize(
    ("value", "expected"),
    [("1S", 1), ("100m", 0.1), ("2H", 7200), ("3M", 180), ("5u", 5e-6), ("7n", 7e-9), ("99999999S", None), ("123456789S", None)]
    + [(wrong, None) for wrong in ("", "1", "S", "-1S", "1s", "1.5S", "\u0661S", " 1S", "1S ")],
)
def test_timeouts(value: str, expected: float | None) -> None:
    assert timeout_s(value) == (None if expected is None else pytest.approx(expected))


def test_grpc_web_is_another_protocol() -> None:
    assert is_grpc("application/grpc") and is_grpc("application/grpc+proto") and is_grpc("application/grpc;x=y")
    assert not is_grpc("application/grpc-web") and not is_grpc("application/grpcx") and not is_grpc("")


# Windows


def test_a_granted_byte_wakes_one_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[int] = []
    wait_for_turn = stream.Stream._wait_for_turn

    async def counted(self: stream.Stream) -> None:
        turns.append(self.id)
        await wait_for_turn(self)

    monkeypatch.setattr(stream.Stream, "_wait_for_turn", counted)

    async def test() -> None:
        server = Server(settings=ServerSettings(300, 0, 1000, 50_000, ""))
        wire = server.open()
        wire.send(*(headers(number) + data(number, message(b"size 1000")) for number in range(1, 400, 2)))
        await settle()
        wire.frames()
        blocked = len(turns)  # 200 answers of 1005 bytes for a connection's window of 65,535
        assert blocked == 135
        wire.send(window_update(0, 1))
        await settle()
        assert [len(found.payload) for found in wire.of(Kind.DATA)] == [1] and len(turns) == blocked + 1
        wire.send(window_update(399, 1))
        await settle()
        assert not wire.of(Kind.DATA) and len(turns) == blocked + 1 and len(wire.connection.queue) == blocked
        wire.send(window_update(0, 10**6))
        await settle(300)
        assert sum(len(found.payload) for found in wire.of(Kind.DATA)) == 200 * 1005 - 65_535 - 1
        await lost(wire)
        server.check_empty()

    run(test)


@pytest.mark.parametrize("how", ["reset", "lost"])
def test_a_writer_that_goes_passes_its_turn_on(how: str) -> None:
    async def test() -> None:
        server = Server()
        wire = server.open(greeting=PREFACE + settings_frame({Setting.INITIAL_WINDOW_SIZE: 10**6}))
        wire.send(*(headers(number) + data(number, message(b"size 70000")) for number in (1, 3, 5)))
        await settle()
        wire.frames()
        wire.send(window_update(0, 10**6), *([reset(1, ErrorCode.CANCEL)] if how == "reset" else []))
        if how == "lost":
            await lost(wire)
        else:
            await settle()
            assert {found.stream for found in wire.of(Kind.DATA)} == {3, 5}
            await lost(wire)
        server.check_empty()

    run(test)


ENDINGS: dict[str, bytes] = {
    "proper": data(1, message(), ended=True),
    "reset": data(1, message(bytes(20_000))) + reset(1, ErrorCode.CANCEL),
    "trailers": data(1, message()) + headers(1, fields=[(b"a", b"b")], flags=Flag.END_HEADERS | Flag.END_STREAM),
    "cut off": data(1, message()[:-1], ended=True),
    "too large": data(1, b"\0\0\xff\xff\xff" + bytes(16_000)),
    "compressed": data(1, b"\1" + message()[1:]),
    "padded": frame(Kind.DATA, Flag.PADDED | Flag.END_STREAM, 1, b"\xff" + message() + bytes(255)),
    "unfinished": data(1, message(bytes(40_000))[:30_000]),
    "many": data(1, message() * 1000, ended=True),
    "bad trailers": headers(1, fields=[(b"A", b"b")], flags=Flag.END_HEADERS | Flag.END_STREAM),
    "afterwards": data(1, message(), ended=True) + reset(1, ErrorCode.CANCEL) + data(1, message()) + window_update(1, 5),
}


@pytest.mark.parametrize("handler", [echo, never_read], ids=["read", "not read"])
@pytest.mark.parametrize("name", ENDINGS)
def test_windows_and_counts_return_after_every_end_of_a_stream(name: str, handler: object) -> None:
    async def test() -> None:
        server = Server(handler)  # type: ignore[arg-type]
        wire = server.open()
        wire.send(headers(1), ENDINGS[name])
        await settle()
        if not wire.transport.is_aborted:
            wire.send(reset(1, ErrorCode.CANCEL))
        await settle()
        connection = wire.connection
        assert connection._receive_window + connection._used == server_connection.CONNECTION_WINDOW
        assert server.budget.used == 0 and not connection.streams and server.server.calls == 0
        await lost(wire)
        server.check_empty()

    run(test)


def test_many_megabytes_pass_through_one_stream() -> None:
    """No byte of a window is lost: 30 MB are 450 windows."""

    async def test() -> None:
        server = Server()
        wire = server.open()
        wire.send(headers(1))
        allowed, piece = DEFAULT_WINDOW, message(b"none" + bytes(9000))
        rest = b""
        for _ in range(3000):
            rest += piece
            while rest and allowed > 0:
                size = min(len(rest), allowed, 16_384)
                wire.send(data(1, rest[:size]))
                rest, allowed = rest[size:], allowed - size
                await settle(6)
                allowed += sum(int.from_bytes(found.payload, "big") for found in wire.of(Kind.WINDOW_UPDATE) if found.stream == 1)
            assert allowed > 0
        await lost(wire)
        server.check_empty()

    run(test)


# What is kept


def test_messages_that_are_not_read_count_and_an_address_has_a_share() -> None:
    async def test() -> None:
        server = Server(never_read, input_bytes=400_000)
        wire = server.open()
        for number in (1, 3, 5):
            wire.send(headers(number), data(number, message(b"ab") * 600))  # 4,200 bytes on the wire, 39,600 kept
        assert 0 < server.budget.used <= 100_000 + 40_000
        other = server.open("10.0.0.2")
        other.send(headers(1), data(1, message(bytes(40_000))))
        assert len(server.server._shared.connections) == 2 and server.budget.used > 100_000
        for one in (wire, other):
            await lost(one)
        server.check_empty()

    run(test)


def test_a_message_in_use_counts_until_the_next_is_asked_for() -> None:
    """A request may have to wait for room behind the gate."""

    async def test() -> None:
        go_on = asyncio.Event()

        async def use(call: ServerCall) -> None:
            while await call.read() is not None:
                await go_on.wait()

        server = Server(use, input_bytes=400_000)
        wire = server.open()
        wire.send(headers(1), data(1, message(bytes(30_000))))
        await settle()
        assert 30_000 <= server.budget.used < 31_000
        go_on.set()
        await settle()
        assert server.budget.used == 0
        await lost(wire)
        server.check_empty()

    run(test)


def test_calls_of_an_address_and_of_all_are_bounded_over_their_connections() -> None:
    async def test() -> None:
        server = Server(never_read)

        def status_of_ten(peer: str) -> list[Frame]:
            wires.append(server.open(peer))
            wires[-1].frames()
            wires[-1].send(*(headers(number) for number in range(1, 17, 2)))
            return wires[-1].of(Kind.HEADERS, Kind.RST_STREAM)

        wires: list[Wire] = []
        assert not status_of_ten("10.0.0.1")
        refused = status_of_ten("10.0.0.1")
        assert sum(b"BUSY" in found.payload for found in refused) == 4 and server.server.calls == 12
        assert not status_of_ten("10.0.0.2")
        assert sum(b"BUSY" in found.payload for found in status_of_ten("10.0.0.3")) == 8 and server.server.calls == 20
        for wire in wires:
            await lost(wire)
        server.check_empty()

    run(test)


# What takes too long


def test_a_peer_that_never_sends_its_preface_is_closed() -> None:
    async def test() -> None:
        server = Server()
        silent, slow = server.open(greeting=b""), server.open(greeting=b"")
        for byte in PREFACE[:9]:
            slow.send(bytes([byte]))
            await wait(1)
        assert not silent.transport.is_aborted
        await wait(2)
        assert silent.transport.is_aborted and slow.transport.is_aborted and server.ended == 2

    run(test)


async def keep_alive(wire: Wire, seconds: float) -> None:
    """Time passes, and the peer answers pings."""
    for _ in range(round(seconds / 5)):
        await wait(5)
        if any(not found.flags for found in wire.of(Kind.PING)) and not wire.transport.is_aborted:
            wire.send(frame(Kind.PING, Flag.ACK, 0, b"bistream"))


@pytest.mark.parametrize(("used", "limit"), [(False, server_connection.UNUSED_TIMEOUT_S), (True, server_connection.IDLE_TIMEOUT_S)])
def test_a_connection_without_calls_is_closed(used: bool, limit: float) -> None:
    async def test() -> None:
        server = Server()
        wire = server.open()
        if used:
            assert await works(wire)
        await keep_alive(wire, limit - 15)
        assert not wire.transport.is_aborted
        await keep_alive(wire, 30)
        assert wire.transport.is_aborted

    run(test)


@pytest.mark.parametrize("what", ["frame", "header block"])
def test_a_frame_or_block_without_end_is_not_waited_for(what: str) -> None:
    async def test() -> None:
        server = Server(never_read)
        wire = server.open()
        wire.send(headers(1))
        rest = data(1, bytes(16_000)) if what == "frame" else headers(3, flags=0)
        wire.send(rest[:10] if what == "frame" else rest)
        for number in range(1, round(link.PARTIAL_TIMEOUT_S / 2) + 8):
            if wire.transport.is_aborted:
                break
            wire.send(rest[9 + number : 10 + number] if what == "frame" else frame(Kind.CONTINUATION, 0, 3, b"\0"))
            await wait(2)
        assert wire.transport.is_aborted and number * 2 >= link.PARTIAL_TIMEOUT_S
        await settle()
        server.check_empty()

    run(test)


def test_a_message_that_comes_too_slowly_ends_its_call_and_leaves_the_others() -> None:
    async def test() -> None:
        server = Server()
        wire = server.open()
        wire.send(headers(1), data(1, message(bytes(1000))[:500]), headers(3))
        wire.frames()
        for _ in range(6):
            wire.send(data(1, b"x"), data(3, message(b"y")))
            await wait(6)
        assert [found.stream for found in wire.of(Kind.HEADERS)] == [3]
        for _ in range(6):
            wire.send(data(1, b"x"), data(3, message(b"y")))
            await wait(6)
        ends = wire.of(Kind.HEADERS)
        assert [found.stream for found in ends] == [1] and b"not complete after 60 s" in ends[0].payload
        await lost(wire)
        server.check_empty()

    run(test)


def test_a_deadline_of_the_client_ends_the_call() -> None:
    async def test() -> None:
        server = Server(never_read)
        wire = server.open()
        wire.frames()
        wire.send(headers(1, (b"grpc-timeout", b"5S")), headers(3, (b"grpc-timeout", b"later")))
        await wait(4)
        assert not wire.of(Kind.HEADERS)
        await wait(2)
        ends = wire.of(Kind.HEADERS)
        assert [found.stream for found in ends] == [1] and b"grpc-status\x014" in ends[0].payload
        assert server.server.calls == 1
        await lost(wire)
        server.check_empty()

    run(test)


def test_a_unary_call_is_bounded_in_reading_and_in_writing() -> None:
    async def unary(call: ServerCall) -> None:
        await call.read_one(60)
        await call.write(bytes(100_000), 120)

    async def test() -> None:
        server = Server(unary)
        wire = server.open()
        wire.frames()
        wire.send(headers(1), headers(3), data(3, message(), ended=True))
        await keep_alive(wire, 50)
        assert server.server.calls == 2
        await keep_alive(wire, 20)
        assert server.server.calls == 1
        await keep_alive(wire, 60)
        assert server.server.calls == 0 and await works_by_ping(wire)
        await lost(wire)
        server.check_empty()

    run(test)


async def works_by_ping(wire: Wire) -> bool:
    wire.frames()
    wire.send(frame(Kind.PING, 0, 0, b"12345678"))
    return any(found.payload == b"12345678" for found in wire.of(Kind.PING))


def test_a_peer_that_acknowledges_nothing_has_no_more_than_others() -> None:
    """Our settings only say what is enforced or the default, so that nothing depends on their acknowledgement."""

    async def test() -> None:
        server = Server(never_read)
        wire = server.open()
        wire.frames()
        wire.send(*(headers(number) for number in range(1, 2 * SETTINGS.max_streams + 4, 2)))
        assert [found.code for found in wire.of(Kind.RST_STREAM)] == 2 * [ErrorCode.REFUSED_STREAM]
        await lost(wire)

    run(test)


def test_the_last_number_of_a_stream_is_served_and_no_other_after_it() -> None:
    async def test() -> None:
        server = Server()
        wire = server.open()
        assert await works(wire, 2**31 - 1)
        wire.send(call(1, b"again"))
        await settle()
        assert not wire.of(Kind.DATA)
        await lost(wire)

    run(test)


def test_tls_without_the_protocol_is_closed() -> None:
    class Chosen:
        def __init__(self, name: str | None) -> None:
            self._name = name

        def selected_alpn_protocol(self) -> str | None:
            return self._name

    async def test() -> None:
        server = Server()
        for name in (None, "http/1.1"):
            assert server.open(tls=Chosen(name)).transport.is_aborted
        wire = server.open(tls=Chosen("h2"))
        assert await works(wire)
        await lost(wire)

    run(test)
