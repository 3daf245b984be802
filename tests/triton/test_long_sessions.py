"""A server whose flow knows five seconds of a session: longer ones go on, and can be cancelled there."""

from __future__ import annotations

import uuid

import pytest

from bistream.errors import CancelledError
from bistream.keeper.server_process import TritonServer
from tests.formats import SAMPLE_RATE
from tests.triton.conftest import FLOW_CONTEXT_S
from tests.triton.requests import Stream
from tests.triton.test_sessions import MODEL, Voice, check_audio

WORDS = [b"One more ", b"sentence, ", b"as long ", b"as the one ", b"before. "] * 7 + [b"The end."]


@pytest.fixture
def url(offline_server: TritonServer) -> str:
    return offline_server.grpc_url


def test_a_session_goes_on_beyond_what_the_flow_knows(url: str, voice: Voice) -> None:
    with Stream(url) as stream:
        session_id = uuid.uuid4().hex
        start = stream.send(MODEL, session_id=session_id, target_text=WORDS[0], is_end=False, **voice)
        for word in WORDS[1:]:
            stream.receive(stream.send(MODEL, session_id=session_id, target_text=word, is_start=False, is_end=word is WORDS[-1]))
        answer = stream.receive(start)
    check_audio(answer, len(b"".join(WORDS)))
    assert answer.waveform.size > 3 * FLOW_CONTEXT_S * SAMPLE_RATE


def test_a_session_is_cancelled_beyond_it(url: str, voice: Voice) -> None:
    with Stream(url) as stream:
        session_id = uuid.uuid4().hex
        start = stream.send(MODEL, session_id=session_id, target_text=b"".join(WORDS), is_end=False, **voice)
        while start.waveform.size < 2 * FLOW_CONTEXT_S * SAMPLE_RATE:
            seen = len(start.outputs)
            stream.receive_audio(start)
            assert len(start.outputs) > seen
        stream.send(MODEL, session_id=session_id, is_cancel=True)
        assert isinstance(stream.receive(start).error, CancelledError)
        check_audio(stream.receive(stream.send(MODEL, target_text=b"Again.", **voice)), len("Again."))
