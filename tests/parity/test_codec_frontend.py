"""Recordings as Spark-TTS's networks read them, against the reference's outputs. Tolerances: tests/golden_spark/README.md.

Resampling is not compared: callers send 16 kHz, and our resampler is another one than the reference's.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from bistream.bicodec.recording import mel_filters, mel_frames, mel_window, normalize_volume, reference_clip, unit_variance
from bistream.types import FloatArray
from tests.parity.golden_spark import read_json, tensors
from tests.parity.spark_codec import codec

DATA, INFO = tensors("frontend"), read_json("frontend_info.json")
VOLUMES = sorted(match[1] for key in DATA if (match := re.fullmatch(r"volume\.(\w+)\.in", key)))
MELS = sorted(match[1] for key in DATA if (match := re.fullmatch(r"(\w+)\.mel", key)))
RECORDINGS = sorted(match[1] for key in DATA if (match := re.fullmatch(r"(\w+)\.wave", key)))
EXACT, MEL_TOLERANCE = 1e-6, 1e-4


def recording(name: str) -> FloatArray:
    """``tiled`` is the beginning of ``short``."""
    wave: FloatArray = DATA["short.wave" if name == "tiled" else f"{name}.wave"].numpy()
    return wave[: INFO[name]["samples"]]


def clip_of(name: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return reference_clip(normalize_volume(recording(name).astype(np.float64)), codec().config.recording)


def test_there_are_cases() -> None:
    assert len(VOLUMES) >= 6 and len(MELS) >= 2 and len(RECORDINGS) >= 2


@pytest.mark.parametrize("name", VOLUMES)
def test_volume(name: str) -> None:
    found = normalize_volume(DATA[f"volume.{name}.in"].numpy())
    np.testing.assert_allclose(found, DATA[f"volume.{name}.out"].numpy(), rtol=0, atol=EXACT)


@pytest.mark.parametrize("name", sorted({*MELS, *RECORDINGS}))
def test_volume_and_clip_of_a_recording(name: str) -> None:
    wave, info = recording(name).astype(np.float64), INFO[name]
    normalized = normalize_volume(wave)
    loudest = int(np.abs(wave).argmax())
    assert normalized[loudest] / wave[loudest] == pytest.approx(info["gain_of_volume_normalisation"], abs=EXACT)
    clip = clip_of(name)
    assert len(clip) == info["ref_samples"]
    np.testing.assert_allclose(clip[:16], info["ref_first_16"], rtol=0, atol=EXACT)
    np.testing.assert_allclose(clip[-16:], info["ref_last_16"], rtol=0, atol=EXACT)


@pytest.mark.parametrize("name", MELS)
def test_mel(name: str) -> None:
    np.testing.assert_allclose(mel_frames(clip_of(name), codec().config.mel), DATA[f"{name}.mel"][0], rtol=0, atol=MEL_TOLERANCE)


def test_window_and_filters() -> None:
    sizes = codec().config.mel
    window = DATA["mel.window"].numpy()
    before = (sizes.fft - len(window)) // 2
    np.testing.assert_allclose(mel_window(sizes)[before : before + len(window)], window, rtol=0, atol=EXACT)
    assert np.count_nonzero(mel_window(sizes)) == np.count_nonzero(mel_window(sizes)[before : before + len(window)])
    np.testing.assert_allclose(mel_filters(sizes).T, DATA["mel.filterbank"].numpy(), rtol=0, atol=EXACT)


@pytest.mark.parametrize("name", RECORDINGS)
def test_what_wav2vec2_reads(name: str) -> None:
    found = unit_variance(normalize_volume(recording(name).astype(np.float64)))
    np.testing.assert_allclose(found, tensors("wav2vec2")[f"{name}.input_values"][0], rtol=0, atol=1e-5)
