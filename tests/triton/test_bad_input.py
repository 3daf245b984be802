"""An invalid request gets a clear error and one final response, and the server keeps serving. All that is refused: tests/unit/sessions."""

from __future__ import annotations

import re
import uuid
from typing import Any

import numpy as np
import pytest

from bistream.errors import ERRORS_BY_CODE
from tests.triton.requests import Answer, Stream, ask

MODEL = "cosyvoice2_bistream"
SPEAKABLE: dict[str, Any] = {"target_text": "Hello."}


def silence(samples: int) -> dict[str, Any]:
    return {"reference_wav": np.full((1, samples), 0.01, np.float32), "reference_text": "Silence."}


def with_sample(value: float) -> dict[str, Any]:
    recording = np.full((1, 16000), 0.01, np.float32)
    recording[0, 123] = value
    return {"reference_wav": recording, "reference_text": "Broken."}


BAD_VOICES: dict[str, tuple[dict[str, Any], str]] = {
    "0 samples": (silence(0), "INVALID_INPUT"),
    "NaN": (with_sample(np.nan), "INVALID_INPUT"),
    "negative length": ({**silence(16000), "reference_wav_len": -5}, "INVALID_INPUT"),
    "transcript is not UTF-8": ({**silence(16000), "reference_text": b"\xff\xfe"}, "INVALID_INPUT"),
    "unknown speaker": ({"speaker_id": "nobody"}, "UNKNOWN_SPEAKER"),
}
BAD_REQUESTS: dict[str, dict[str, Any]] = {
    "no text at all": {"is_end": True},
    "invalid UTF-8": {"target_text": b"Hello \xff world."},
    "temperature is NaN": {**SPEAKABLE, "temperature": float("nan")},
    "empty session_id": {**SPEAKABLE, "session_id": ""},
    "a cancel without session_id": {"is_cancel": True},
}
# Refused by Triton before the model sees them.
MISSHAPEN: dict[str, dict[str, Any]] = {
    "recording as float64": {**SPEAKABLE, "reference_wav": np.zeros((1, 16000), np.float64)},
    "text as a number": {"target_text": np.zeros((1, 1), np.int32)},
    "an unknown input": {**SPEAKABLE, "volume": np.ones((1, 1), np.float32)},
}


def check_refusal(answer: Answer, code: str) -> None:
    assert answer.error is not None
    assert answer.code == code, answer.error.sentence
    assert not answer.outputs and answer.finals == 1 and answer.last_is_empty
    check_sentence(answer.error.sentence)


def check_sentence(sentence: str) -> None:
    """The sentence tells the user what to do and reveals no internals."""
    assert sentence and "\n" not in sentence
    assert not re.search(r"Traceback|\.py|(?<!\w)/\w+/", sentence), sentence


@pytest.fixture(scope="module", autouse=True)
def _serves_afterwards(grpc_url: str, voice: dict[str, Any]) -> Any:
    yield
    answer = ask(grpc_url, MODEL, **SPEAKABLE, **voice)
    assert answer.error is None and answer.waveform.size > 0


@pytest.mark.parametrize("name", BAD_VOICES)
def test_a_bad_voice_is_refused(grpc_url: str, name: str) -> None:
    values, code = BAD_VOICES[name]
    check_refusal(ask(grpc_url, MODEL, **SPEAKABLE, **values), code)


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_a_bad_request_is_refused(grpc_url: str, voice: dict[str, Any], name: str) -> None:
    check_refusal(ask(grpc_url, MODEL, **voice, **BAD_REQUESTS[name]), "INVALID_INPUT")


@pytest.mark.parametrize("name", MISSHAPEN)
def test_wrong_types_and_shapes_are_refused(grpc_url: str, name: str) -> None:
    with Stream(grpc_url) as stream:
        answer = stream.receive_error(stream.send(MODEL, **MISSHAPEN[name]))
    assert answer.error is not None and not answer.outputs
    assert answer.error.code not in ERRORS_BY_CODE  # Triton's own message, which names the input
    assert "/" not in answer.error.sentence


def test_an_append_over_the_limit_leaves_the_session_unchanged(grpc_url: str, voice: dict[str, Any]) -> None:
    session_id = uuid.uuid4().hex
    with Stream(grpc_url) as stream:
        start = stream.send(MODEL, session_id=session_id, target_text="Short", is_end=False, **voice)
        too_long = stream.send(MODEL, session_id=session_id, target_text="x" * 400, is_start=False, is_end=False)
        stream.receive(too_long)
        # tritonclient hides which request failed: the error was attributed to the awaited one
        assert too_long.code == "INVALID_INPUT" and too_long.error is not None and too_long.error.session_id == session_id
        stream.send(MODEL, session_id=session_id, target_text=".", is_start=False, is_end=True)
        stream.receive(start)
    assert start.error is None and start.waveform.size > 0
