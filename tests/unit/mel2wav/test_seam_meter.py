"""The seam meter detects defects added to a signal, and none in a clean one."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.evaluation.seam_meter import joints_of, measure_seams
from bistream.types import FloatArray
from tests.formats import SAMPLE_RATE, VOCODER_OVERLAP_SAMPLES

EIGHT_PERCENT_DB = 20 * np.log10(1.08)


def speech_like(seconds: float = 2.0, seed: int = 0) -> FloatArray:
    """Harmonics of a gliding pitch under a slow envelope, with some breath noise."""
    generator = np.random.default_rng(seed)
    time_s = np.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    phase = 2 * np.pi * np.cumsum(130 + 40 * np.sin(2 * np.pi * 0.7 * time_s)) / SAMPLE_RATE
    voice = sum(np.sin(harmonic * phase) / harmonic for harmonic in range(1, 20))
    envelope = 0.6 + 0.4 * np.sin(2 * np.pi * 3 * time_s)
    speech: FloatArray = (0.1 * envelope * voice + 0.003 * generator.standard_normal(len(time_s))).astype(np.float32)
    return speech


@settings(max_examples=10)
@given(st.integers(0, 1000), st.lists(st.integers(1000, 46_000), min_size=1, max_size=4))
def test_a_seamless_signal_scores_zero(seed: int, joints: list[int]) -> None:
    signal = speech_like(seed=seed)
    report = measure_seams(signal, signal, joints)
    assert report.worst_click_db <= 1e-6
    assert report.worst_level_step_db <= 1e-6


@settings(max_examples=10)
@given(st.integers(0, 100), st.integers(0, VOCODER_OVERLAP_SAMPLES), st.sampled_from([-1.0, 1.0]))
def test_it_hears_a_click(seed: int, offset: int, sign: float) -> None:
    signal, joint = speech_like(seed=seed), 20_000
    clicking = signal.copy()
    clicking[joint + offset] += sign * 0.3
    assert measure_seams(clicking, signal, [joint]).worst_click_db > 6
    assert measure_seams(clicking, signal, [40_000]).worst_click_db <= 1e-6  # another joint


@settings(max_examples=10)
@given(st.integers(0, 100), st.integers(0, 14))
def test_it_hears_a_level_step_of_eight_percent(seed: int, window: int) -> None:
    """Wherever the step lies in the overlap; a step on a window's edge shows in full, one inside a window at least by half."""
    signal, joint = speech_like(seed=seed), 20_000
    for offset, share in ((window * 240, 0.99), (window * 240 + 120, 0.4)):
        louder = signal.copy()
        louder[joint + offset :] *= 1.08
        report = measure_seams(louder, signal, [joint])
        assert share * EIGHT_PERCENT_DB < report.worst_level_step_db < 1.05 * EIGHT_PERCENT_DB


def test_a_joint_near_the_end_and_one_in_silence() -> None:
    signal = np.concatenate([speech_like(1.0), np.zeros(SAMPLE_RATE, np.float32)])
    streamed = signal + 1e-6
    for joint in (100, SAMPLE_RATE + 5000, len(signal) - 10):
        report = measure_seams(streamed, signal, [joint])
        assert report.worst_click_db < 0.5
        assert report.worst_level_step_db < 0.1


def test_joints_of_chunks() -> None:
    assert joints_of([10_560, 0, 24_000, 3_840]) == [10_560, 34_560]
    assert joints_of([480]) == []
    assert measure_seams(np.zeros(9, np.float32), np.zeros(9, np.float32), []).worst_click_db == 0.0
