"""The HTTP/2 side against peers that break the protocol, byte by byte, and against one that keeps to it slowly."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from gateway.http2.frames import (
    PREFACE,
    ErrorCode,
    Flag,
    Kind,
    Setting,
    decoded_message,
    encoded_message,
    frame,
    goaway,
    header_block,
    reset,
    settings_frame,
    unpadded,
    window_update,
)
from gateway.settings import Limits
from tests.unit.client.fake_server import Received, Speakers, Stream
from tests.unit.gateway.requests import message
from tests.unit.gateway.rig import TIMEOUT_S, GateRig

READY = "/inference.GRPCInferenceService/ServerReady"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


def call_headers(path: str = READY, method: bytes = b"POST", kind: bytes = b"application/grpc") -> bytes:
    return header_block(
        [(b":method", method), (b":scheme", b"http"), (b":path", path.encode()), (b":authority", b"x"), (b"content-type", kind)]
    )


def headers(stream_id: int, path: str = READY, flags: int = Flag.END_HEADERS) -> bytes:
    return frame(Kind.HEADERS, flags, stream_id, call_headers(path))


def grpc_message(data: bytes) -> bytes:
    return b"\0" + len(data).to_bytes(4, "big") + data


class Peer:
    """A raw connection. ``frames`` reads until the server closes, or ``until`` says that enough has come."""

    def __init__(self, rig: GateRig, greeting: bytes = PREFACE + settings_frame({})) -> None:
        self._socket = socket.create_connection(("127.0.0.1", rig.grpc_port), timeout=TIMEOUT_S)
        self._rest = b""
        self.send(greeting)

    def send(self, *parts: bytes) -> None:
        try:
            self._socket.sendall(b"".join(parts))
        except OSError:
            pass  # the server has closed already

    def frame(self) -> tuple[int, int, int, bytes] | None:
        """(kind, flags, stream, payload); ``None`` when the connection is closed."""
        while len(self._rest) < 9 or len(self._rest) < 9 + int.from_bytes(self._rest[:3], "big"):
            try:
                data = self._socket.recv(65536)
            except ConnectionError:
                return None
            if not data:
                return None
            self._rest += data
        size = int.from_bytes(self._rest[:3], "big")
        head, payload, self._rest = self._rest[:9], self._rest[9 : 9 + size], self._rest[9 + size :]
        return head[3], head[4], int.from_bytes(head[5:9], "big"), payload

    def next_of(self, *kinds: Kind) -> tuple[int, int, int, bytes] | None:
        while (got := self.frame()) is not None:
            if got[0] in kinds:
                return got
        return None

    def end(self) -> int | None:
        """The code of the GOAWAY before the server closes; ``None`` when it closed without one."""
        code = None
        while (got := self.frame()) is not None:
            if got[0] == Kind.GOAWAY:
                code = int.from_bytes(got[3][4:8], "big")
        return code

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


@pytest.fixture(scope="module")
def rig() -> Iterator[GateRig]:
    with GateRig(Speakers(), Limits(max_message_bytes=50_000, max_connections=20)) as made:
        yield made
        channel, stub = made.stub()  # after all of it, the gate still works
        with channel:
            assert stub.ServerReady(service_pb2.ServerReadyRequest(), timeout=240).ready
        made.wait_for(lambda: made.gate.admission.streams == 0 and made.gate.admission.sessions == 0)


def test_a_call_by_hand(rig: GateRig) -> None:
    with Peer(rig) as peer:
        peer.send(headers(1), frame(Kind.DATA, Flag.END_STREAM, 1, grpc_message(b"")))
        answer = peer.next_of(Kind.DATA)
        assert answer is not None and service_pb2.ServerReadyResponse.FromString(answer[3][5:]).ready
        trailers = peer.next_of(Kind.HEADERS)
        assert trailers is not None and trailers[1] & Flag.END_STREAM and b"grpc-status\x010" in trailers[3]


def test_padding_priority_and_continuation_are_understood(rig: GateRig) -> None:
    block = call_headers()
    flags = Flag.PADDED | Flag.PRIORITY
    first = frame(Kind.HEADERS, flags, 1, b"\3" + bytes(5) + block[:10] + bytes(3))
    rest = frame(Kind.CONTINUATION, 0, 1, block[10:20]) + frame(Kind.CONTINUATION, Flag.END_HEADERS, 1, block[20:])
    data = grpc_message(b"")
    padded = frame(Kind.DATA, Flag.PADDED, 1, b"\2" + data[:2] + bytes(2)) + frame(Kind.DATA, Flag.END_STREAM, 1, data[2:])
    with Peer(rig) as peer:
        peer.send(first, rest, padded)
        assert peer.next_of(Kind.DATA) is not None


ANSWERED = ("data after the end", "more than the window", "headers in the midst")  # the call may have ended before
VIOLATIONS: dict[str, tuple[bytes, ErrorCode]] = {
    "no settings first": (PREFACE + headers(1), ErrorCode.PROTOCOL_ERROR),
    "a frame over the limit": (struct.pack(">I", 16385)[1:] + bytes(6), ErrorCode.FRAME_SIZE_ERROR),
    "data on no stream": (frame(Kind.DATA, 0, 0, b"x"), ErrorCode.PROTOCOL_ERROR),
    "data on an idle stream": (frame(Kind.DATA, 0, 7, b"x"), ErrorCode.PROTOCOL_ERROR),
    "headers on no stream": (headers(0), ErrorCode.PROTOCOL_ERROR),
    "headers on a server's stream": (headers(2), ErrorCode.PROTOCOL_ERROR),
    "damaged headers": (frame(Kind.HEADERS, Flag.END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff\xff"), ErrorCode.COMPRESSION_ERROR),
    "an unknown table entry": (frame(Kind.HEADERS, Flag.END_HEADERS, 1, b"\xfe"), ErrorCode.COMPRESSION_ERROR),
    "a bad Huffman code": (frame(Kind.HEADERS, Flag.END_HEADERS, 1, b"\0\x82\xff\xff\x81\xff"), ErrorCode.COMPRESSION_ERROR),
    "headers interrupted": (headers(1, flags=0) + frame(Kind.PING, 0, 0, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    "a continuation of nothing": (frame(Kind.CONTINUATION, Flag.END_HEADERS, 1, b""), ErrorCode.PROTOCOL_ERROR),
    "a continuation of another": (headers(1, flags=0) + frame(Kind.CONTINUATION, 0, 3, b""), ErrorCode.PROTOCOL_ERROR),
    "headers without end": (headers(1, flags=0) + 3 * frame(Kind.CONTINUATION, 0, 1, bytes(8000)), ErrorCode.ENHANCE_YOUR_CALM),
    "a bomb of headers": (
        frame(Kind.HEADERS, Flag.END_HEADERS, 1, b"\x40\x01x" + b"\x7f\x81\x1e" + bytes(4000) + 8000 * b"\xbe"),
        ErrorCode.COMPRESSION_ERROR,
    ),
    "more padding than data": (headers(1) + frame(Kind.DATA, Flag.PADDED, 1, b"\xff\0"), ErrorCode.PROTOCOL_ERROR),
    "padding without room": (headers(1) + frame(Kind.DATA, Flag.PADDED, 1, b""), ErrorCode.FRAME_SIZE_ERROR),
    "data after the end": (
        headers(1, STREAM) + frame(Kind.DATA, Flag.END_STREAM, 1) + frame(Kind.DATA, 0, 1, b"x"),
        ErrorCode.STREAM_CLOSED,
    ),
    "headers in the midst": (headers(1, STREAM) + headers(1, STREAM), ErrorCode.PROTOCOL_ERROR),
    "settings of a stream": (frame(Kind.SETTINGS, 0, 1), ErrorCode.PROTOCOL_ERROR),
    "settings of odd size": (frame(Kind.SETTINGS, 0, 0, b"12345"), ErrorCode.FRAME_SIZE_ERROR),
    "an acknowledgement with settings": (frame(Kind.SETTINGS, Flag.ACK, 0, bytes(6)), ErrorCode.FRAME_SIZE_ERROR),
    "a window over the limit": (settings_frame({Setting.INITIAL_WINDOW_SIZE: 2**31}), ErrorCode.FLOW_CONTROL_ERROR),
    "a frame size of 1": (settings_frame({Setting.MAX_FRAME_SIZE: 1}), ErrorCode.PROTOCOL_ERROR),
    "an increment of 0": (window_update(0, 0), ErrorCode.PROTOCOL_ERROR),
    "an increment too large": (2 * window_update(0, 2**31 - 1), ErrorCode.FLOW_CONTROL_ERROR),
    "an increment for an idle stream": (window_update(9, 1), ErrorCode.PROTOCOL_ERROR),
    "an increment of wrong size": (frame(Kind.WINDOW_UPDATE, 0, 0, b"123"), ErrorCode.FRAME_SIZE_ERROR),
    "a reset of an idle stream": (reset(9, ErrorCode.CANCEL), ErrorCode.PROTOCOL_ERROR),
    "a reset of wrong size": (headers(1) + frame(Kind.RST_STREAM, 0, 1, b"1"), ErrorCode.FRAME_SIZE_ERROR),
    "a ping of wrong size": (frame(Kind.PING, 0, 0, b"1"), ErrorCode.FRAME_SIZE_ERROR),
    "a priority of wrong size": (frame(Kind.PRIORITY, 0, 1, b"1"), ErrorCode.FRAME_SIZE_ERROR),
    "a pushed stream": (frame(Kind.PUSH_PROMISE, Flag.END_HEADERS, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
    "a flood of pings": (5000 * frame(Kind.PING, Flag.ACK, 0, bytes(8)), ErrorCode.ENHANCE_YOUR_CALM),
    "a flood of settings": (5000 * settings_frame({}), ErrorCode.ENHANCE_YOUR_CALM),
    "a flood of unknown frames": (5000 * frame(99, 0, 0), ErrorCode.ENHANCE_YOUR_CALM),  # type: ignore[arg-type]
    "a flood of empty data": (headers(1, STREAM) + 5000 * frame(Kind.DATA, 0, 1), ErrorCode.ENHANCE_YOUR_CALM),
    "rapid resets": (
        b"".join(headers(number, STREAM) + reset(number, ErrorCode.CANCEL) for number in range(1, 10_001, 2)),
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
    "more than the window": (
        headers(1, STREAM) + 70 * frame(Kind.DATA, 0, 1, b"\1" + bytes(999)),
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_a_violation_ends_the_connection_with_its_code(rig: GateRig, name: str) -> None:
    attack, code = VIOLATIONS[name]
    with Peer(rig, b"" if attack.startswith(PREFACE) else PREFACE + settings_frame({})) as peer:
        peer.send(attack)
        if name in ANSWERED or "flood" in name or name == "rapid resets":
            assert peer.end() in (code, None)  # what the peer still sends makes its system forget what it has received
        else:
            assert peer.end() == code


def test_what_is_no_http2_is_closed(rig: GateRig) -> None:
    for greeting in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\0\1\0\1\xfc\3\3", bytes(100)):
        with Peer(rig, greeting) as peer:
            assert peer.end() is None


def test_random_bytes_and_random_frames_end_nobody_else(rig: GateRig) -> None:
    choose = random.Random(1)
    good = headers(1, STREAM) + frame(Kind.DATA, 0, 1, grpc_message(message(target_text="x").SerializeToString()))
    for _ in range(150):
        with Peer(rig) as peer:
            if choose.random() < 0.3:
                peer.send(choose.randbytes(choose.randrange(200)))
            elif choose.random() < 0.5:
                attack = bytearray(good)
                for _ in range(choose.randrange(1, 4)):
                    attack[choose.randrange(len(attack))] = choose.randrange(256)
                peer.send(bytes(attack))
            else:
                for _ in range(choose.randrange(1, 6)):
                    kind, flags = choose.randrange(11), choose.choice((0, 1, 4, 5, 8, 0x2D))
                    peer.send(frame(kind, flags, choose.choice((0, 1, 3)), choose.randbytes(choose.randrange(20))))  # type: ignore[arg-type]
    rig.wait_for(lambda: rig.grpc_door.connections == 0)  # until the gate has noticed that twenty of these have gone, it lets nobody in
    while not is_answered(rig):
        pass
    rig.wait_for(lambda: rig.gate.admission.streams == 0)


def is_answered(rig: GateRig) -> bool:
    with Peer(rig) as peer:
        peer.send(frame(Kind.PING, 0, 0, b"12345678"))
        return peer.next_of(Kind.PING) is not None


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\1\0\0\0\1x", b"12"),  # compressed
        (b"\0\0\1\0\0", b"8"),  # announces 65,536 bytes
        (b"\0\0\0\0\x05abc", b"13"),  # cut off
        (grpc_message(b"\xff\xff"), b"3"),  # no protobuf
    ],
)
def test_a_bad_message_ends_its_call_with_a_status(rig: GateRig, data: bytes, status: bytes) -> None:
    with Peer(rig) as peer:
        peer.send(headers(1), frame(Kind.DATA, Flag.END_STREAM, 1, data))
        answer = peer.next_of(Kind.HEADERS)
        assert answer is not None and b"\x0bgrpc-status" + bytes([len(status)]) + status in answer[3]
        peer.send(headers(3), frame(Kind.DATA, Flag.END_STREAM, 3, grpc_message(b"")))
        assert peer.next_of(Kind.DATA) is not None  # the connection goes on


@pytest.mark.parametrize(
    "block", [call_headers(method=b"GET"), call_headers(kind=b"text/html"), call_headers(kind=b"application/grpc-web")]
)
def test_what_is_no_grpc_is_refused(rig: GateRig, block: bytes) -> None:
    with Peer(rig) as peer:
        peer.send(frame(Kind.HEADERS, Flag.END_HEADERS | Flag.END_STREAM, 1, block))
        answer = peer.next_of(Kind.HEADERS)
        assert answer is not None and b"415" in answer[3]


def test_a_peer_with_a_small_window_gets_as_much_as_it_allows(rig: GateRig) -> None:
    with Peer(rig, PREFACE + settings_frame({Setting.INITIAL_WINDOW_SIZE: 10})) as peer:
        request = message(target_text="x", is_start=True, is_end=True).SerializeToString()
        peer.send(headers(1, STREAM), frame(Kind.DATA, Flag.END_STREAM, 1, grpc_message(request)))
        received = bytearray()
        while True:
            got = peer.next_of(Kind.DATA, Kind.HEADERS)
            assert got is not None
            if got[0] == Kind.HEADERS:
                if got[1] & Flag.END_STREAM:
                    break
                continue
            assert len(got[3]) <= 5000
            received += got[3]
            peer.send(window_update(1, len(got[3]) if len(received) < 100 else 5000))
        size = int.from_bytes(received[1:5], "big")
        answer = service_pb2.ModelStreamInferResponse.FromString(bytes(received[5 : 5 + size]))
        assert answer.infer_response.outputs[0].shape == [1, 2400]


def test_a_shrinking_window_is_respected(rig: GateRig) -> None:
    with Peer(rig, PREFACE + settings_frame({Setting.INITIAL_WINDOW_SIZE: 100})) as peer:
        request = message(target_text="x", is_start=True, is_end=True).SerializeToString()
        peer.send(headers(1, STREAM), frame(Kind.DATA, Flag.END_STREAM, 1, grpc_message(request)))
        got = peer.next_of(Kind.DATA)
        assert got is not None and len(got[3]) == 100
        peer.send(settings_frame({Setting.INITIAL_WINDOW_SIZE: 50}), window_update(1, 60))  # 0 - 50 + 60
        got = peer.next_of(Kind.DATA)
        assert got is not None and len(got[3]) == 10


def flood(request: Received, stream: Stream) -> None:
    """The server speaks four minutes at once."""
    for number in range(240):
        stream.audio(request.id, np.zeros(24_000), number, 0)


def test_a_peer_that_grants_everything_and_takes_nothing_keeps_a_bounded_amount() -> None:
    generous = PREFACE + settings_frame({Setting.INITIAL_WINDOW_SIZE: 2**31 - 1}) + window_update(0, 2**31 - 1 - 65_535)
    with GateRig(flood, Limits(max_unread_audio_s=10)) as rig, Peer(rig, generous) as peer:
        request = message(target_text="x", session_id="a", is_start=True, is_end=False).SerializeToString()
        peer.send(headers(1, STREAM), frame(Kind.DATA, 0, 1, grpc_message(request)))
        rig.wait_for(lambda: rig.gate.metrics.refusals["CANCELLED"] == 1)
        assert rig.server.stream_gone.wait(TIMEOUT_S)
        rig.wait_for(lambda: rig.gate.admission.sessions == 0)


def test_pings_are_answered(rig: GateRig) -> None:
    with Peer(rig) as peer:
        peer.send(frame(Kind.PING, 0, 0, b"12345678"))
        assert peer.next_of(Kind.PING) == (Kind.PING, Flag.ACK, 0, b"12345678")


def test_a_goaway_of_the_peer_lets_its_calls_end(rig: GateRig) -> None:
    with Peer(rig) as peer:
        peer.send(headers(1), goaway(0, ErrorCode.NO_ERROR), frame(Kind.DATA, Flag.END_STREAM, 1, grpc_message(b"")))
        assert peer.next_of(Kind.DATA) is not None


def test_connections_over_the_limit_are_closed_and_places_become_free(rig: GateRig) -> None:
    peers = [Peer(rig) for _ in range(30)]
    assert sum(peer.next_of(Kind.SETTINGS) is None for peer in peers) >= 10
    for peer in peers:
        peer.__exit__()
    rig.wait_for(lambda: rig.grpc_door.connections == 0)
    with Peer(rig) as peer:
        assert peer.next_of(Kind.SETTINGS) is not None


def test_connections_of_an_address_are_bounded() -> None:
    with GateRig(Speakers(), Limits(connections_per_address=2)) as rig, Peer(rig) as first, Peer(rig) as second:
        assert first.next_of(Kind.SETTINGS) and second.next_of(Kind.SETTINGS)
        with Peer(rig) as third:
            assert third.next_of(Kind.SETTINGS) is None


def test_unfinished_messages_are_bounded_over_all_clients() -> None:
    limits = Limits(max_input_bytes=400_000, max_message_bytes=200_000)  # an address may take a quarter
    with GateRig(Speakers(), limits) as rig, Peer(rig) as first, Peer(rig) as second:
        unfinished = b"\0" + (150_000).to_bytes(4, "big") + bytes(15_995)
        for peer in (first, second):
            peer.send(headers(1, STREAM), *(frame(Kind.DATA, 0, 1, piece) for piece in (unfinished, *(3 * [bytes(16_000)]))))
        refused = [peer.next_of(Kind.HEADERS, Kind.WINDOW_UPDATE) for peer in (first, second)]
        assert any(refused)
        rig.wait_for(lambda: rig.gate.admission.streams == 1)


@pytest.mark.parametrize("details", ["plain", "100 % sure", "zwölf 再见", "line\nbreak", ""])
def test_status_messages_keep_every_character(details: str) -> None:
    encoded = encoded_message(details)
    assert encoded.isascii() and b"\n" not in encoded and decoded_message(encoded.decode()) == details


def test_long_header_values_are_encoded() -> None:
    import hpack  # noqa: PLC0415

    for size in (0, 1, 126, 127, 128, 254, 255, 1000, 20_000):
        fields = [(b"name", size * b"v")]
        assert [tuple(field) for field in hpack.Decoder(max_header_list_size=10**6).decode(header_block(fields), raw=True)] == fields


def test_an_unpadded_frame_is_its_payload() -> None:
    assert unpadded(0, b"abc") == b"abc" and unpadded(Flag.PADDED, b"\1abc\0") == b"abc"


def test_a_server_that_stops_says_so_to_the_calls_that_are_left() -> None:
    with GateRig(Speakers()) as own, Peer(own) as peer:
        peer.send(headers(1, STREAM), frame(Kind.PING, 0, 0, bytes(8)))
        assert peer.next_of(Kind.PING) is not None
        own.run(own.grpc_door.stop(0.0))
        assert peer.next_of(Kind.GOAWAY) is not None
        trailers = peer.next_of(Kind.HEADERS)
        assert trailers is not None and b"SHUTTING_DOWN" in trailers[3] and peer.end() == ErrorCode.NO_ERROR


def test_a_server_that_stops_refuses_new_calls() -> None:
    with GateRig(Speakers()) as own:
        channel, stub = own.stub()
        with channel:
            assert stub.ServerReady(service_pb2.ServerReadyRequest()).ready
            own.run(own.grpc_door.stop(0.1))
            with pytest.raises(grpc.RpcError) as refused:
                stub.ServerReady(service_pb2.ServerReadyRequest(), timeout=240)
            assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
