"""Pauses, joints and lengths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.evaluation.sound import lengths_flags, longest_pause_s, loudest_joint_db, ordinary_s
from bistream.types import FloatArray

RATE = 24_000


def tone(seconds: float, hertz: float = 220.0) -> FloatArray:
    times = np.arange(round(seconds * RATE)) / RATE
    return np.asarray(0.3 * np.sin(2 * np.pi * hertz * times), np.float32)


@given(st.floats(0.1, 2.0), st.floats(0.0, 1.0), st.floats(0.001, 1.0))
def test_a_pause_inside_counts_and_one_at_an_end_does_not(pause_s: float, end_s: float, level: float) -> None:
    quiet, end = np.zeros(round(pause_s * RATE), np.float32), np.zeros(round(end_s * RATE), np.float32)
    sound = level * np.concatenate([end, tone(0.5), quiet, tone(0.5), end])
    assert longest_pause_s(sound, RATE) == pytest.approx(pause_s, abs=0.041)
    assert longest_pause_s(tone(0.5), RATE) == 0.0 == longest_pause_s(end, RATE)


@given(st.integers(2000, 20_000), st.sampled_from([0.05, 0.2]))
def test_a_jump_at_a_joint_stands_out_and_a_smooth_joint_does_not(joint: int, jump: float) -> None:
    sound = tone(1.0)
    smooth = loudest_joint_db(sound, [joint], RATE)
    clicked = sound.copy()
    clicked[joint] += jump
    loud = loudest_joint_db(clicked, [joint], RATE)
    assert smooth is not None and loud is not None and smooth < 3.0 and loud > smooth + 10.0
    assert loudest_joint_db(sound, [], RATE) is None


def test_lengths_out_of_the_ordinary() -> None:
    usual = [1.0, 1.1, 0.9, 1.0, 1.05]
    flags = lengths_flags([*usual, 2.5, 0.3, 1.0, 1.0], [None] * 7 + [(3, 20), (2, 20)])
    assert flags == [(False, False)] * 5 + [(True, False), (False, True), (False, True), (False, False)]
    assert lengths_flags([], []) == []


def test_lengths_of_texts_grow_with_them() -> None:
    text = "Thanks for calling, how can I help you today?"
    assert 2.0 < ordinary_s(text) < 5.0 and ordinary_s(text + text) == pytest.approx(2 * ordinary_s(text), rel=0.1)
    assert 1.5 < ordinary_s("您好，请问有什么可以帮您？") < 5.0
