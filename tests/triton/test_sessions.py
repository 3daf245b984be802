"""Sessions of ``cosyvoice2_bistream`` through the real server: text in pieces, audio in chunks, every way a session can end."""

from __future__ import annotations

import os
import signal
import uuid
from typing import Any

import numpy as np

from bistream.keeper.server_process import TritonServer
from tests.formats import SAMPLES_PER_TOKEN
from tests.triton.conftest import wait_for
from tests.triton.keeper import processes_with
from tests.triton.requests import Answer, Stream, ask

MODEL = "cosyvoice2_bistream"
Voice = dict[str, Any]
STANDSTILL_S = 3.0  # the server suspects a model process after one


def check_audio(answer: Answer, characters: int) -> None:
    """The complete audio of a session that ended normally, at the usual speed."""
    check_outputs(answer, characters)
    assert answer.waveform.size % SAMPLES_PER_TOKEN == 0


def check_outputs(answer: Answer, characters: int) -> None:
    """As ``check_audio``, at any speed."""
    assert answer.error is None
    assert answer.finals == 1 and answer.last_is_empty
    assert [int(output["sequence_number"][0, 0]) for output in answer.outputs] == list(range(len(answer.outputs)))
    consumed = [int(output["text_consumed"][0, 0]) for output in answer.outputs]
    assert consumed == sorted(consumed) and consumed[-1] == characters
    positions = [int(output["text_position"][0, 0]) for output in answer.outputs]
    assert positions == sorted(positions) and positions[-1] == characters
    assert all(position >= certain for position, certain in zip(positions, consumed, strict=True))
    assert all(output["waveform"].ndim == 2 and output["waveform"].dtype == np.float32 for output in answer.outputs)
    waveform = answer.waveform
    assert waveform.size > 0 and np.isfinite(waveform).all() and 0.0 < np.abs(waveform).max() <= np.float32(0.99)


def test_a_break_is_exact_silence_between_speech_in_pieces(grpc_url: str, voice: Voice) -> None:
    """A piece that is no SSML is refused, and the session goes on without it."""
    text = '<speak>Good <break time="1500ms"/>mor<sub alias="ning">n.</sub> On.</speak>'
    session_id = uuid.uuid4().hex
    with Stream(grpc_url) as stream:
        start = stream.send(MODEL, session_id=session_id, target_text=text[:20], is_end=False, text_type="ssml", **voice)
        later: dict[str, Any] = {"session_id": session_id, "is_start": False}
        refused = stream.receive_error(stream.send(MODEL, target_text="</p>", is_end=False, **later))
        assert "not well-formed" in str(refused.error)
        for begin in range(20, len(text), 9):
            stream.send(MODEL, target_text=text[begin : begin + 9], is_end=begin + 9 >= len(text), **later)
        check_outputs(stream.receive(start), len(text))
    silent = np.flatnonzero(start.waveform == 0.0)
    assert 36_000 <= max(map(len, np.split(silent, np.flatnonzero(np.diff(silent) > 1) + 1))) <= 36_002


def test_text_is_appended_while_audio_is_generated(grpc_url: str, voice: Voice) -> None:
    """A character may be cut between two pieces."""
    text = "The first words of a text are enough to begin with, the rest may come later. 再见。"
    data = text.encode()
    pieces = [data[:52], data[52:57], data[57:-5], data[-5:]]
    session_id = uuid.uuid4().hex
    with Stream(grpc_url) as stream:
        start = stream.send(MODEL, session_id=session_id, target_text=pieces[0], is_end=False, **voice)
        stream.receive_audio(start)  # before the rest of the text exists
        for piece in pieces[1:]:
            accepted = stream.receive(stream.send(MODEL, session_id=session_id, target_text=piece, is_start=False, is_end=False))
            assert accepted.error is None and accepted.last_is_empty and not accepted.outputs
        ended = stream.receive(stream.send(MODEL, session_id=session_id, target_text="", is_start=False, is_end=True))
        assert ended.error is None
        check_audio(stream.receive(start), len(text))


def test_a_speed_streams_and_a_later_piece_changes_it(grpc_url: str, voice: Voice) -> None:
    pieces, sizes = ("The first words of a text are enough to begin with, ", "ok."), []
    for later in (2.0, 1.0):
        session_id = uuid.uuid4().hex
        with Stream(grpc_url) as stream:
            start = stream.send(MODEL, session_id=session_id, target_text=pieces[0], is_end=False, speed=2.0, **voice)
            stream.receive_audio(start)  # before the rest of the text exists
            rest: dict[str, Any] = {"session_id": session_id, "target_text": pieces[1], "is_start": False}
            assert stream.receive_error(stream.send(MODEL, speed=9.0, **rest)).code == "INVALID_INPUT"
            stream.receive(stream.send(MODEL, speed=later, **rest))
            check_outputs(stream.receive(start), len("".join(pieces)))
        sizes.append(start.waveform.size)
    assert all(size % (SAMPLES_PER_TOKEN // 2) == 0 for size in sizes)
    assert sizes[0] < sizes[1] < 2 * sizes[0], "the same tokens, the first of them twice as fast as the others"


def test_cancel_ends_the_session_at_once(grpc_url: str, voice: Voice) -> None:
    session_id = uuid.uuid4().hex
    with Stream(grpc_url) as stream:
        start = stream.send(MODEL, session_id=session_id, target_text="A long text that nobody wants to hear. " * 8, is_end=False, **voice)
        stream.receive_audio(start)
        cancel = stream.send(MODEL, session_id=session_id, is_cancel=True)
        stream.receive(start)
        assert start.code == "CANCELLED" and start.finals == 1 and start.last_is_empty
        assert stream.receive(cancel).error is None
        (heard,) = cancel.outputs
        assert heard["waveform"].size == 0 and 0 <= int(heard["text_consumed"][0, 0]) <= int(heard["text_position"][0, 0]) <= 38 * 8
        for text, is_end in (("more", False), ("", True)):
            late = stream.send(MODEL, session_id=session_id, target_text=text, is_start=False, is_end=is_end)
            assert stream.receive(late).code == "CANCELLED"
        assert stream.receive(stream.send(MODEL, session_id=session_id, is_cancel=True)).code == "CANCELLED"


def test_a_dropped_stream_frees_the_session(grpc_url: str, voice: Voice) -> None:
    """The tests' server admits three sessions: if one were kept, the last of these starts would be refused."""
    for _ in range(4):
        stream = Stream(grpc_url)
        start = stream.send(MODEL, session_id=uuid.uuid4().hex, target_text="Nobody hears the rest of this. ", is_end=False, **voice)
        stream.receive_audio(start)
        stream.drop()
    answers: list[Answer] = []

    def is_admitted() -> bool:
        answers.append(ask(grpc_url, MODEL, target_text="Next.", **voice))
        return answers[-1].code != "BUSY"

    wait_for(is_admitted, "a free place")
    check_audio(answers[-1], len("Next."))


def test_a_stalled_model_process_is_waited_for(server: TritonServer, voice: dict[str, Any]) -> None:
    """As on a host short of memory, or during migration of a virtual machine: requests of that time are answered, and a session goes on."""
    text, session_id = "The first words are spoken. ", uuid.uuid4().hex
    (process,) = processes_with(f"{server.settings.model_repository}/{MODEL}/1/model.py")
    with Stream(server.grpc_url) as stream, Stream(server.grpc_url) as other:
        start = stream.send(MODEL, session_id=session_id, target_text=text, is_end=False, **voice)
        stream.receive_audio(start)
        os.kill(process, signal.SIGSTOP)
        try:
            wrong = other.send(MODEL, target_text="", **voice)
            assert other.stays_silent(STANDSTILL_S), "the server did not wait"
        finally:
            os.kill(process, signal.SIGCONT)
        assert other.receive(wrong).code == "INVALID_INPUT"
        accepted = stream.receive(stream.send(MODEL, session_id=session_id, target_text=text, is_start=False, is_end=True))
        assert accepted.error is None
        check_audio(stream.receive(start), 2 * len(text))
    assert server.models.take_dead() == []
