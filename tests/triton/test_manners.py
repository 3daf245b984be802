"""The watermark and the voices by name on the real server. Manners of speaking: test_voice_hashes.py, test_cosyvoice3.py."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bistream.client.connection import INSECURE
from bistream.client.inquiry import Inquiry
from bistream.contract.voices import ListedVoice
from bistream.watermark.filter import MarkFilter
from tests.formats import SAMPLE_RATE, SAMPLES_PER_MEL_FRAME
from tests.triton.conftest import WAIT_TIMEOUT_S
from tests.triton.requests import ask

MODEL = "cosyvoice2_bistream"
PRESET = "001"  # of the tiny checkpoint's spk2info.pt


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


def test_the_voices_are_listed_by_name(grpc_url: str) -> None:
    voices = Inquiry(grpc_url, INSECURE, WAIT_TIMEOUT_S).voices()
    assert ListedVoice(PRESET, "preset") in voices and not any(voice.is_default for voice in voices[1:])
