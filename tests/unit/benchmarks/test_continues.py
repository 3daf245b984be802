"""The steps that the benchmark reports, of tones whose pitch and level are known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.continues import divided, frames_of, pairs, steps
from bistream.types import FloatArray

RATE = 24_000


def tone(hertz: float, level: float = 0.3, seconds: float = 0.8) -> FloatArray:
    """With overtones, as a voice has them."""
    time = np.arange(round(seconds * RATE)) / RATE
    parts = np.arange(1, 6)[:, None]
    made: FloatArray = (level * np.sin(2 * np.pi * hertz * parts * time) / parts).sum(0).astype(np.float32)
    return made


@settings(max_examples=20)
@given(hertz=st.floats(70, 380), other=st.floats(70, 380), gain_db=st.floats(-12, 12))
def test_pitch_and_level_of_tones(hertz: float, other: float, gain_db: float) -> None:
    """Lags are whole samples: 1.6 % at 380 Hz, less below."""
    found = steps(tone(hertz), tone(other, 0.3 * 10 ** (gain_db / 20)), RATE)
    assert found is not None
    assert found[0] == pytest.approx(12 * np.log2(other / hertz), abs=0.3)
    assert found[1] == pytest.approx(gain_db, abs=0.7)


def test_noise_and_silence_have_no_pitch() -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, RATE).astype(np.float32)
    assert not frames_of(noise, RATE)[0].any() and not frames_of(np.zeros(RATE, np.float32), RATE)[0].any()
    assert steps(tone(200), noise, RATE) is None


@settings(max_examples=10)
@given(pause_s=st.floats(0.1, 0.5))
def test_one_utterance_is_divided_in_its_pause(pause_s: float) -> None:
    pause = np.zeros(round(pause_s * RATE), np.float32)
    first, second = divided(np.concatenate([tone(200), pause, tone(150)]), ("x" * 20, "y" * 20), RATE)
    assert abs(len(first) - 0.8 * RATE - len(pause) / 2) < 0.06 * RATE and len(second) > 0.8 * RATE


def test_pairs_are_neighbours_and_no_sentence_comes_twice() -> None:
    found = [sentence for pair in pairs(20) for sentence in pair]
    assert len(found) == 40 == len(set(found))
