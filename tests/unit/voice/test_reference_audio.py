"""Every invalid reference recording gets a one-sentence error; a valid one passes unchanged."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.config import RuntimeConfig
from bistream.errors import InvalidInputError
from bistream.types import FloatArray
from bistream.voice.reference_audio import check_reference_audio

CONFIG = RuntimeConfig()
SECOND = 16_000


def recording(samples: int) -> FloatArray:
    waveform: FloatArray = (0.1 * np.sin(np.arange(samples))).astype(np.float32)
    return waveform


def with_value(value: float) -> FloatArray:
    waveform = recording(SECOND)
    waveform[500] = value
    return waveform


@settings(max_examples=12)
@given(length=st.integers(SECOND // 2, SECOND), padding=st.integers(0, 5000), rank_two=st.booleans())
def test_cut_to_its_true_length(length: int, padding: int, rank_two: bool) -> None:
    sent = recording(length + padding)
    output = check_reference_audio(sent[None] if rank_two else sent, np.array([[length]], dtype=np.int32), CONFIG)
    np.testing.assert_array_equal(output, sent[:length])
    assert output.base is None  # a copy: the request's buffer may be reused


def test_limits_are_inclusive_and_padding_does_not_count() -> None:
    assert check_reference_audio(recording(SECOND // 2), None, CONFIG).size == SECOND // 2
    assert check_reference_audio(recording(40 * SECOND), 30 * SECOND, CONFIG).size == 30 * SECOND


@pytest.mark.parametrize(
    ("waveform", "length", "words"),
    [
        (recording(0), None, "0 samples"),
        (recording(0)[None], 0, "0 samples"),
        (recording(SECOND // 2 - 1), None, "at least 0.5 s"),
        (recording(SECOND), 100, "at least 0.5 s"),
        (recording(30 * SECOND + 1), None, "at most 30 s"),
        (with_value(np.nan), None, "NaN"),
        (with_value(np.inf), None, "infinity"),
        (with_value(-np.inf), None, "infinity"),
        (with_value(-20_000), None, "scale"),
        (recording(SECOND), -1, "reference_wav_len is -1"),
        (recording(SECOND), 0, "reference_wav_len is 0"),
        (recording(SECOND), SECOND + 1, f"reference_wav_len is {SECOND + 1}"),
        (recording(SECOND), np.array([1, 2], dtype=np.int32), "one integer"),
        (recording(SECOND), np.array([], dtype=np.int32), "one integer"),
        (recording(SECOND), np.array([[16000.0]]), "one integer"),
        (recording(SECOND).astype(np.float64), None, "float64"),
        ((recording(SECOND) * 32768).astype(np.int16), None, "int16"),
        (recording(SECOND).reshape(2, -1), None, "shape"),
        (recording(SECOND).reshape(1, 1, -1), None, "shape"),
        (np.float32(0.5), None, "shape"),
    ],
)
def test_refused(waveform: FloatArray, length: object, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        check_reference_audio(waveform, length, CONFIG)  # type: ignore[arg-type]
