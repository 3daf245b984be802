"""Mel and tokens of a voice cover the same time; a voice is checked, owns its arrays and cannot be changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bistream.audio.resample import resample
from bistream.errors import InvalidInputError
from bistream.voice.build import build_voice_prompt, make_voice_prompt
from bistream.voice.features import mel_24k

EMBEDDING = np.ones(192, dtype=np.float32)


@settings(max_examples=12)
@given(samples=st.integers(1000, 20_000), tokens=st.integers(0, 60), high_hz=st.sampled_from([8000.0, 12000.0]))
def test_trimmed_to_the_shorter(samples: int, tokens: int, high_hz: float) -> None:
    waveform = np.random.default_rng(samples).standard_normal(samples).astype(np.float32)
    codes = np.arange(tokens, dtype=np.int32)
    voice = build_voice_prompt(waveform, "text", codes, EMBEDDING, high_hz)
    mel = mel_24k(resample(waveform, 16_000, 24_000), high_hz)
    expected = min(mel.shape[0] // 2, tokens)
    assert voice.prompt_text == "text"
    np.testing.assert_array_equal(voice.speech_tokens, codes[:expected])
    np.testing.assert_array_equal(voice.speech_feat, mel[: 2 * expected])


def test_arrays_are_owned_and_read_only() -> None:
    codes = np.arange(3, dtype=np.int32)
    voice = make_voice_prompt("", codes, np.zeros((6, 80), dtype=np.float32), EMBEDDING)
    codes[0] = 99
    assert voice.speech_tokens[0] == 0
    for array in (voice.speech_tokens, voice.speech_feat, voice.speaker_embedding):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


@pytest.mark.parametrize(
    ("codes", "frames", "embedding"),
    [
        (np.zeros(3), np.zeros((5, 80)), EMBEDDING),
        (np.zeros(3), np.zeros(6), EMBEDDING),
        (np.zeros((1, 3)), np.zeros((6, 80)), EMBEDDING),
        (np.zeros(3), np.zeros((6, 80)), np.ones((1, 192))),
        (np.zeros(3), np.full((6, 80), np.nan), EMBEDDING),
        (np.zeros(3), np.zeros((6, 80)), np.full(192, np.inf)),
    ],
)
def test_wrong_arrays(codes: NDArray[Any], frames: NDArray[Any], embedding: NDArray[Any]) -> None:
    with pytest.raises(InvalidInputError):
        make_voice_prompt("", codes, frames, embedding)
