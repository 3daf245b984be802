"""Recordings become speech with a little silence after it; what holds none is refused. Measured with words in tests/voice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.config import RuntimeConfig
from bistream.errors import InvalidInputError
from bistream.types import FloatArray
from bistream.voice.conditioning import LOUD_DB, MOST_PEAK, condition_reference, silence_span, speech_span
from bistream.voice.levels import HELD_FRAMES, HOP, held_levels, levels_db, without_rumble
from tests.sounds import speech_like

ASSETS = Path(__file__).parents[3] / "assets"
RECORDINGS = [ASSETS / "reference.wav", *sorted((ASSETS / "voice" / "recordings").glob("*.wav"))]
CONFIG = RuntimeConfig()
RATE = 16_000
SILENCE = 3200
TIME_S = np.arange(2 * RATE) / RATE
few = settings(max_examples=15, deadline=None, derandomize=True)
seconds = st.floats(0, 3)
seeds = st.integers(0, 30)


def noise(duration_s: float, level_db: float, seed: int = 0) -> FloatArray:
    samples = np.random.default_rng(seed).standard_normal(round(duration_s * RATE))
    return np.asarray(10 ** (level_db / 20) * samples, np.float32)


def silence(duration_s: float) -> FloatArray:
    return np.zeros(round(duration_s * RATE), np.float32)


def read(path: Path) -> FloatArray:
    samples: FloatArray = soundfile.read(path, dtype="float32")[0]
    return samples


def whispered(speech: FloatArray) -> FloatArray:
    """The same spectra, of noise."""
    phases = np.random.default_rng(0).uniform(0, 2 * np.pi, 161)
    whisper = np.zeros(len(speech))
    for begin in range(0, len(speech) - 320, 160):
        heights = np.convolve(np.abs(np.fft.rfft(speech[begin : begin + 320] * np.hanning(320))), np.ones(7) / 7, "same")
        phases = np.roll(phases, 37)
        whisper[begin : begin + 320] += np.fft.irfft(heights * np.exp(1j * phases)) * np.hanning(320)
    return np.asarray(whisper, np.float32)


def tones(*frequencies_hz: float) -> FloatArray:
    return np.asarray(sum((0.2 * np.sin(2 * np.pi * frequency * TIME_S) for frequency in frequencies_hz), 0 * TIME_S), np.float32)


def clicks() -> FloatArray:
    sound = noise(2, -90)
    sound[::4000] = 0.9
    return sound


@given(before_s=seconds, after_s=seconds, level_db=st.floats(-75, -40), seed=seeds)
@few
def test_noise_around_speech_goes_and_speech_stays(before_s: float, after_s: float, level_db: float, seed: int) -> None:
    speech = speech_like(RATE, seed)
    span = speech_span(np.concatenate([noise(before_s, level_db, 1), speech, noise(after_s, level_db, 2)]))
    begin = round(before_s * RATE)
    assert begin - 0.7 * RATE <= span.start <= begin + 0.02 * RATE  # up to half a second is not taken for noise
    assert begin + RATE - 0.06 * RATE <= span.stop <= begin + RATE + 0.7 * RATE
    if before_s > 0.7:
        assert span.start >= begin - 0.15 * RATE
    if after_s > 0.7:
        assert span.stop <= begin + RATE + 0.15 * RATE


@given(before_s=seconds, after_s=seconds, seed=seeds)
@few
def test_silence_around_speech_goes(before_s: float, after_s: float, seed: int) -> None:
    speech = speech_like(RATE, seed)
    made = condition_reference(np.concatenate([silence(before_s), speech, silence(after_s)]), CONFIG)
    after = SILENCE if len(made) > RATE + 4 * HOP else 0  # none where nothing was to be taken away
    assert abs(len(made) - RATE - after) <= 4 * HOP
    assert not made[len(made) - after :].any()
    assert after or before_s + after_s < 4 * HOP / RATE


@given(scale=st.floats(0.01, 3.5), before_s=seconds, level_db=st.floats(-75, -45), seed=seeds)
@few
def test_what_is_loud_for_70_ms_is_never_removed(scale: float, before_s: float, level_db: float, seed: int) -> None:
    waveform = np.concatenate([noise(before_s, level_db), speech_like(RATE, seed) * np.float32(scale)])
    held = held_levels(levels_db(without_rumble(waveform)))
    loud = np.flatnonzero(held >= held.max() - LOUD_DB)
    span = speech_span(waveform)
    assert span.start <= loud[0] * HOP and span.stop >= min(len(waveform), (loud[-1] + HELD_FRAMES - 1) * HOP)
    made = condition_reference(waveform, CONFIG)
    factor = made[: span.stop - span.start].std() / waveform[span].std()
    np.testing.assert_allclose(made[: span.stop - span.start], waveform[span] * factor, atol=1e-5)
    assert np.abs(made).max() <= MOST_PEAK + 1e-6 and (factor > 0.999 or np.abs(waveform[span]).max() > MOST_PEAK)


@given(before_s=seconds, level_db=st.floats(-75, -40), seed=seeds)
@few
def test_twice_is_hardly_more_than_once(before_s: float, level_db: float, seed: int) -> None:
    once = condition_reference(np.concatenate([noise(before_s, level_db), speech_like(RATE, seed), noise(before_s, level_db)]), CONFIG)
    twice = condition_reference(once, CONFIG)
    assert abs(len(twice) - len(once)) <= 0.25 * RATE  # margins of noise below -60 dB go


@given(before_s=seconds, after_s=seconds, seed=seeds, level_db=st.floats(-120, -50))
@few
def test_silence_is_found_as_upstream_finds_it(before_s: float, after_s: float, seed: int, level_db: float) -> None:
    """The definition, frame by frame: root mean square of 440 centred samples, 60 dB below the loudest."""
    waveform = np.concatenate([silence(before_s), speech_like(RATE, seed), noise(after_s, level_db)])
    padded = np.pad(waveform.astype(np.float64), 220)
    power = np.array([np.mean(padded[k * 220 : k * 220 + 440] ** 2) for k in range(1 + len(waveform) // 220)])
    levels = 10 * np.log10(np.maximum(power, 1e-10))
    (loud,) = np.nonzero(levels - levels.max() > -60)
    assert silence_span(waveform) == (loud[0] * 220, min(len(waveform), (loud[-1] + 1) * 220))


def test_the_longest_recording_stays_within_what_the_networks_take() -> None:
    made = condition_reference(speech_like(30 * RATE), CONFIG)
    assert len(made) == 30 * RATE


def test_too_little_speech_is_told_in_seconds() -> None:
    with pytest.raises(InvalidInputError, match=r"0\.3\d s of speech .* at least 0\.5 s"):
        condition_reference(np.concatenate([silence(1), speech_like(RATE // 3), silence(1)]), CONFIG)


@pytest.mark.parametrize(
    ("waveform", "reason"),
    [
        (silence(1), "silent"),
        (noise(2, -90), "silent"),
        (clicks(), "silent"),
        (clicks() + noise(2, -50), "steady"),
        (tones(440), "tones"),
        (tones(440) + noise(2, -62), "tones"),
        (tones(350, 440), "tones"),
        (np.asarray(0.3 * np.sin(2 * np.pi * (200 * TIME_S + 400 * TIME_S**2)), np.float32), "tones"),
        (tones(150, 300, 450, 600, 750, 900, 1050, 1200, 1350, 1500, 1650, 1800), "steady"),
        (np.full(RATE, 0.25, np.float32), "silent"),
        (noise(2, -20), "steady"),
        (noise(2, -62), "steady"),
        (np.asarray(0.01 * np.cumsum(noise(2, 0)) / 3, np.float32), "steady"),
    ],
)
def test_what_holds_no_speech_is_refused_with_a_reason(waveform: FloatArray, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"has no speech in it \([^)]*{reason}[^)]*\); send a recording of somebody who speaks\.$"):
        condition_reference(waveform, CONFIG)


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_real_recordings_are_taken_however_they_were_made(path: Path) -> None:
    speech = read(path)
    kinds = {
        "as it is": speech,
        "faint": speech * np.float32(0.003),
        "with a constant": speech + np.float32(0.2),
        "with hum": speech + np.asarray(0.05 * np.sin(2 * np.pi * 50 * np.arange(len(speech)) / RATE), np.float32),
        "over a telephone": np.interp(np.arange(len(speech)), np.arange(0, len(speech), 4), speech[::4]).astype(np.float32),
        "clipped": np.clip(10 * speech, -1, 1),
        "whispered": whispered(speech),
        "as loud as noise": speech + noise(len(speech) / RATE, 20 * np.log10(speech.std())),
    }
    for kind, waveform in kinds.items():
        assert len(condition_reference(waveform, CONFIG)) >= 1.5 * RATE, kind
