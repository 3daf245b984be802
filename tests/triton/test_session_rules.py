"""Rules of a session that hold inside the models, without a gate in front of them: strangers, special tokens, many pieces."""

from __future__ import annotations

import uuid

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from bistream.client.server_errors import server_error
from bistream.contract.audio import SILENCE_S
from bistream.keeper.server_process import TritonServer
from tests.formats import SAMPLE_RATE
from tests.triton.conftest import MOST_CHARS
from tests.triton.requests import Stream, ask
from tests.triton.test_sessions import MODEL, Voice, check_audio


@pytest.fixture
def url(offline_server: TritonServer) -> str:
    return offline_server.grpc_url


def test_a_stranger_who_knows_the_id_reaches_nothing(url: str, voice: Voice) -> None:
    session_id = uuid.uuid4().hex
    with Stream(url) as owner, Stream(url) as stranger:
        start = owner.send(MODEL, "mine", session_id=session_id, target_text="Mine", is_end=False, **voice)
        accepted = owner.receive(owner.send(MODEL, "mine", session_id=session_id, target_text=" alone", is_start=False, is_end=False))
        assert accepted.error is None
        for secret in (None, "yours"):
            append = stranger.send(MODEL, secret, session_id=session_id, target_text="x", is_start=False, is_end=False)
            assert stranger.receive(append).code == "UNKNOWN_SESSION"
            assert stranger.receive(stranger.send(MODEL, secret, session_id=session_id, is_cancel=True)).code == "UNKNOWN_SESSION"
        owner.send(MODEL, "mine", session_id=session_id, target_text=".", is_start=False, is_end=True)
        check_audio(owner.receive(start), len("Mine alone."))


@pytest.mark.parametrize("token", ["<|endofprompt|>", "[laughter]"])
def test_special_tokens_without_end_are_refused_and_one_is_spoken_or_silence(url: str, voice: Voice, token: str) -> None:
    assert ask(url, MODEL, target_text=token * (MOST_CHARS // len(token)), **voice).code == "INVALID_INPUT"
    answer = ask(url, MODEL, target_text=token, **voice)
    if token.startswith("["):
        check_audio(answer, len(token))
    else:
        assert answer.error is None and len(answer.waveform) == round(SILENCE_S * SAMPLE_RATE) and not answer.waveform.any()


def test_thousands_of_pieces_are_answered(url: str, voice: Voice) -> None:
    """Nearly all are empty; the others keep the session, whose limit is short in this test."""
    session_id = uuid.uuid4().hex
    texts = ["" if number % 150 else "o" for number in range(3000)]
    with Stream(url) as stream:
        start = stream.send(MODEL, session_id=session_id, target_text="Hello", is_end=False, **voice)
        pieces = [stream.send(MODEL, session_id=session_id, target_text=text, is_start=False, is_end=False) for text in texts]
        stream.send(MODEL, session_id=session_id, target_text=" world.", is_start=False, is_end=True)
        check_audio(stream.receive(start), len("Hello world.") + 20)
    assert all(piece.error is None and piece.finals == 1 for piece in pieces)


def test_what_triton_refuses_in_its_own_words_gets_a_code_in_the_client(url: str) -> None:
    """The models never see these requests, so no code of ours is in the answer."""
    with Stream(url) as stream:
        wrong_type = stream.receive_error(stream.send(MODEL, reference_wav=np.zeros((1, 8), np.int32)))
        assert wrong_type.error is not None
        assert server_error(wrong_type.error.sentence).code == "INVALID_INPUT"
    tensor = triton.InferInput("is_cancel", [1, 1], "BOOL")
    tensor.set_data_from_numpy(np.zeros((1, 1), np.bool_))
    with triton.InferenceServerClient(url) as client:
        for model, code in ((MODEL, "WRONG_CALL"), ("no_such_model", "NOT_SERVED")):
            with pytest.raises(InferenceServerException) as refusal:
                client.infer(model, [tensor])
            assert server_error(str(refusal.value.message())).code == code
