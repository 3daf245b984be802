"""Both clients against a real gRPC server in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton

from bistream.client.client import BistreamClient
from bistream.client.exchange import Heard
from bistream.client.translation import infer_input
from bistream.contract.fields import COSYVOICE2_BISTREAM
from bistream.errors import BistreamError, BusyError, CancelledError, InvalidInputError, NotServedError
from tests.unit.client.fake_server import Received, Serve, Speaker, Speakers, Stream

WAIT_S = 120.0
Connect = Callable[..., Any]


def test_text_goes_out_in_pieces_and_audio_comes_back_in_order(serve: Serve, connect: Connect) -> None:
    server = serve(Speaker())
    recording = np.linspace(-1, 1, 16000, dtype=np.float32)
    with connect(server.address).start(reference_wav=recording, reference_text="Wörter", session_id="s", seed=5) as session:
        audio = iter(session)
        session.push_text("Hel")
        assert next(audio).text_consumed == 1
        session.push_text("\u4f60".encode()[:1])
        session.end_text("\u4f60".encode()[1:])
        chunks = list(audio)
    assert [chunk.sequence_number for chunk in chunks] == [1, 2]
    np.testing.assert_allclose(chunks[-1].waveform, np.full(2400, 0.03, np.float32))
    start, *pieces = server.received
    assert start.model == "cosyvoice2_bistream"
    np.testing.assert_array_equal(start.inputs["reference_wav"], recording.reshape(1, -1))
    assert start.inputs["reference_wav_len"].tolist() == [[16000]]
    assert start.inputs["seed"].tolist() == [[5]]
    assert start.inputs["reference_text"].decode() == "Wörter"
    assert [request.inputs["target_text"] for request in server.received] == [b"", b"Hel", b"\xe4", b"\xbd\xa0"]
    assert [(r.flag("is_start"), r.flag("is_end")) for r in server.received] == [
        (True, False),
        (False, False),
        (False, False),
        (False, True),
    ]
    assert {request.inputs["session_id"] for request in server.received} == {b"s"}
    assert len({request.id for request in server.received}) == 4
    assert len({request.secret for request in server.received}) == 1 and len(start.secret) == 32
    assert start.wants_empty_final, "only the end of the start says something"
    assert all("reference_wav" not in piece.inputs for piece in pieces)


def test_every_input_of_the_contract_can_be_made() -> None:
    values = {"BYTES": "x", "BOOL": True, "INT32": 3, "INT64": 3, "FP32": 0.5}
    for spec in COSYVOICE2_BISTREAM.inputs:
        tensor = infer_input(spec.name, values[spec.datatype])
        assert (tensor.name(), tensor.datatype(), tensor.shape()) == (spec.name, spec.datatype, [1, 1])


@pytest.mark.parametrize(
    ("message", "kind", "session_id"),
    [
        ("BUSY: All 4 sessions are taken; try again later. [session s]", BusyError, "s"),
        ("[request id: s.0] INVALID_INPUT: The text is empty. [session s]", InvalidInputError, "s"),
        ("Request for unknown model: 'cosyvoice2_bistream' is not found", NotServedError, None),
        ("inference input 'top_k' data-type is 'INT64', but model 'cosyvoice2_bistream' expects 'INT32'", InvalidInputError, None),
    ],
)
def test_errors_are_raised_with_their_code_after_the_audio_before_them(
    serve: Serve, connect: Connect, message: str, kind: type[BistreamError], session_id: str | None
) -> None:
    def behave(request: Received, stream: Stream) -> None:
        stream.audio(request.id, np.zeros(10), 0, 0)
        stream.error(request.id, message)

    heard = 0
    with connect(serve(behave).address).start(speaker_id="anna") as session:
        with pytest.raises(BistreamError) as raised:
            for _ in session:
                heard += 1
        with pytest.raises(BistreamError):
            session.push_text("more")
    assert type(raised.value) is kind and heard == 1
    assert raised.value.session_id == session_id


def test_cancel_is_sent_and_ends_the_session(serve: Serve, connect: Connect) -> None:
    server = serve(Speaker())
    with connect(server.address).start(speaker_id="anna", text="Hello") as session:
        session.cancel()
        with pytest.raises(CancelledError):
            list(session)
        with pytest.raises(CancelledError):
            session.push_text("more")
        assert session.heard == Heard(text_consumed=1, text_position=2)
    assert server.received[-1].flag("is_cancel")


def test_positions_come_with_the_audio(serve: Serve) -> None:
    with BistreamClient(serve(Speaker()).address).start(speaker_id="anna", text="a b 你好", is_end=True) as session:
        (chunk,) = session
    assert (chunk.text_consumed, chunk.text_position, session.heard) == (1, 2, None)


def test_closing_early_ends_the_stream(serve: Serve, connect: Connect) -> None:
    server = serve(Speaker())
    session = connect(server.address).start(speaker_id="anna", text="Hello")
    assert len(next(iter(session)).waveform) == 2400
    session.close()
    session.close()
    assert server.stream_gone.wait(WAIT_S)
    with pytest.raises(CancelledError):
        session.push_text("more")


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[triton.InferenceServerClient]:
    """Those that are made from now on. (grpc itself may share a socket among them.)"""
    made: list[triton.InferenceServerClient] = []

    class Counted(triton.InferenceServerClient):  # type: ignore[misc]  # has no types
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            made.append(self)

    monkeypatch.setattr("bistream.client.client.triton.InferenceServerClient", Counted)
    return made


def test_connections_are_kept_for_later_sessions_where_that_is_asked_for(
    serve: Serve, connections: list[triton.InferenceServerClient]
) -> None:
    server = serve(Speakers())

    def speak(client: BistreamClient) -> None:
        with client.start(speaker_id="anna", text="Hello.", is_end=True) as session:
            assert list(session)

    keeping, plain = BistreamClient(server.address, keeps_connections=True), BistreamClient(server.address)
    speak(keeping)
    with keeping.start(speaker_id="anna", text="He") as running:
        speak(keeping)
        running.end_text("llo.")
        assert list(running)
    for _ in range(2):
        speak(keeping)
    assert len(connections) == 2, "two sessions at a time need two, later ones none"
    keeping.close()
    keeping.close()
    for _ in range(2):
        speak(plain)
    assert len(connections) == 4


def test_a_connection_is_kept_after_a_refusal_and_not_after_a_session_that_was_left(
    serve: Serve, connections: list[triton.InferenceServerClient]
) -> None:
    server = serve(lambda request, stream: stream.error(request.id, "BUSY: Full.") if request.inputs["speaker_id"] == b"full" else None)
    client, made = BistreamClient(server.address, keeps_connections=True), []
    for speaker in ("full", "full", "left", "full"):
        with client.start(speaker_id=speaker, text="Hello.", is_end=True) as session:
            if speaker == "full":
                with pytest.raises(BusyError):
                    list(session)
        made.append(len(connections))
    assert made == [1, 1, 1, 2]
    client.close()


def test_a_server_that_cannot_be_reached(connect: Connect) -> None:
    with pytest.raises(ConnectionError, match=r"127\.0\.0\.1:1"):  # raised by the start or by the iteration, whichever comes first
        with connect("127.0.0.1:1").start(speaker_id="anna") as session:
            list(session)


def test_a_server_that_is_lost(serve: Serve, connect: Connect) -> None:
    server = serve(Speaker())
    with connect(server.address).start(speaker_id="anna", text="Hello") as session:
        audio = iter(session)
        next(audio)
        server.stop()
        with pytest.raises(ConnectionError):
            next(audio)


def test_a_silent_server_is_given_up(serve: Serve, connect: Connect) -> None:
    server = serve(lambda request, stream: None)
    with (
        connect(server.address, silence_timeout_s=0.05).start(speaker_id="anna") as session,
        pytest.raises(TimeoutError, match="No response"),
    ):
        list(session)
