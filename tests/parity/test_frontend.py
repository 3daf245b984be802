"""Front-ends against the reference implementation's outputs. Tolerances: tests/golden/README.md."""

from __future__ import annotations

import re

import numpy as np
import pytest

from bistream.resample import resample
from bistream.voice.features import fbank_16k, log_mel_16k, mel_24k
from tests.parity.golden import read_json, tensors

FEATURE_TOLERANCE = 1e-3  # logarithms of small numbers
RESAMPLE_TOLERANCE = 1e-5
RESAMPLE_CASES = [match.groups() for key in tensors("frontend") if (match := re.fullmatch(r"resample_(\d+)_(\d+)_in", key))]


def golden(name: str) -> np.ndarray:
    return tensors("frontend")[name].numpy()


def test_there_are_resampling_cases() -> None:
    assert len(RESAMPLE_CASES) >= 5


@pytest.mark.parametrize(("source_rate", "target_rate"), RESAMPLE_CASES)
def test_resample(source_rate: str, target_rate: str) -> None:
    case = f"resample_{source_rate}_{target_rate}"
    output = resample(golden(f"{case}_in"), int(source_rate), int(target_rate))
    assert output.dtype == np.float32
    np.testing.assert_allclose(output, golden(f"{case}_out"), atol=RESAMPLE_TOLERANCE, rtol=0)


def test_mel_24k() -> None:
    mel = mel_24k(golden("wave24k")[0])
    assert mel.shape[0] == read_json("frontend_info.json")["mel24k_frames"]
    np.testing.assert_allclose(mel, golden("mel24k")[0].T, atol=FEATURE_TOLERANCE, rtol=0)


def test_log_mel_16k() -> None:
    log_mel = log_mel_16k(golden("wave16k")[0])
    assert log_mel.shape[1] == read_json("frontend_info.json")["logmel_frames"]
    np.testing.assert_allclose(log_mel, golden("logmel16k_128")[0], atol=FEATURE_TOLERANCE, rtol=0)


def test_fbank_16k() -> None:
    features = fbank_16k(golden("wave16k")[0])
    assert features.shape[0] == read_json("frontend_info.json")["fbank_frames"]
    np.testing.assert_allclose(features, golden("fbank16k_80"), atol=FEATURE_TOLERANCE, rtol=0)
    centred = features - features.mean(axis=0, keepdims=True)
    np.testing.assert_allclose(centred, golden("fbank16k_80_centered"), atol=FEATURE_TOLERANCE, rtol=0)
