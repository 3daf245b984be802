"""Manners of speaking through the real server: cross-lingual, as instructed, and with a preset."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from bistream.client.connection import INSECURE
from bistream.client.inquiry import Inquiry
from bistream.contract.voices import ListedVoice
from bistream.watermark.filter import MarkFilter
from tests.formats import SAMPLE_RATE, SAMPLES_PER_MEL_FRAME, SAMPLES_PER_TOKEN
from tests.triton.conftest import WAIT_TIMEOUT_S
from tests.triton.requests import Stream, ask
from tests.triton.test_sessions import check_audio

MODEL = "cosyvoice2_bistream"
PRESET = "001"  # of the tiny checkpoint's spk2info.pt


@pytest.mark.parametrize("model", [MODEL, "cosyvoice2"])
def test_a_whole_text(grpc_url: str, reference_wav: NDArray[np.float32], model: str) -> None:
    recording = {"reference_wav": reference_wav}
    heard = [
        ask(grpc_url, model, target_text="Hi.", **manner)
        for manner in (
            recording,
            {**recording, "instruct_text": "用四川话说", "is_cross_lingual": True},
            {"speaker_id": PRESET, "instruct_text": "None"},
        )
    ]
    assert [answer.error for answer in heard] == [None] * 3
    assert all(answer.waveform.size and answer.waveform.size % SAMPLES_PER_TOKEN == 0 for answer in heard)


@pytest.mark.parametrize("model", [MODEL, "cosyvoice2"])
def test_what_asks_for_the_watermark_is_marked_and_nothing_else(grpc_url: str, model: str) -> None:
    plain, marked, other = (
        ask(grpc_url, model, target_text="Hi there, once more.", speaker_id=PRESET, **asked).waveform
        for asked in ({}, {"is_marked": True}, {"is_marked": False})
    )
    mark = MarkFilter.load(SAMPLE_RATE, SAMPLES_PER_MEL_FRAME, torch.device("cpu"))
    np.testing.assert_array_equal(other, plain)
    np.testing.assert_allclose(marked, mark.push([mark.open()], [plain])[0], atol=1e-5)
    assert np.abs(marked - plain).max() > 1e-3


def test_text_in_pieces_as_instructed(grpc_url: str, reference_wav: NDArray[np.float32]) -> None:
    session_id = uuid.uuid4().hex
    manner: dict[str, Any] = {"reference_wav": reference_wav, "instruct_text": "Softly.<|endofprompt|>"}
    with Stream(grpc_url) as stream:
        start = stream.send(MODEL, session_id=session_id, target_text="A mark [laugh", is_end=False, **manner)
        assert stream.receive(stream.send(MODEL, session_id=session_id, target_text="ter].", is_start=False, is_end=True)).error is None
        check_audio(stream.receive(start), len("A mark [laughter]."))


def test_the_voices_are_listed_by_name(grpc_url: str) -> None:
    voices = Inquiry(grpc_url, INSECURE, WAIT_TIMEOUT_S).voices()
    assert ListedVoice(PRESET, "preset") in voices and not any(voice.is_default for voice in voices[1:])


@pytest.mark.parametrize(
    ("values", "code", "words"),
    [
        ({"target_text": "x", "speaker_id": "中文女"}, "UNKNOWN_SPEAKER", PRESET),
        ({"target_text": "x", "speaker_id": PRESET, "source_wav": np.zeros((1, 16000), np.float32)}, "INVALID_INPUT", "target_text"),
        ({"speaker_id": PRESET, "source_wav": np.zeros((1, 16), np.float32)}, "INVALID_INPUT", "source_wav"),
    ],
)
def test_what_does_not_fit_is_refused(grpc_url: str, values: dict[str, Any], code: str, words: str) -> None:
    with Stream(grpc_url) as stream:
        answer = stream.receive_error(stream.send(MODEL, **values))
    assert answer.code == code and answer.error is not None and words in answer.error.sentence
