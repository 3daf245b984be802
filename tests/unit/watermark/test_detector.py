"""The detector: it tells a marked recording from the same one without the mark, and is the package's own to rounding."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from bistream.errors import ConfigError
from bistream.types import FloatArray
from bistream.watermark.detector import MARKED, Detector
from bistream.watermark.filter import MarkFilter, steady_gains_db
from bistream.watermark.library import BINS, DB_PER_UNIT, load_weights

RECORDINGS = sorted((Path(__file__).resolve().parents[3] / "assets/voice/recordings").glob("*.wav"))


@cache
def detector() -> Detector:
    return Detector()


def recording(path: Path) -> tuple[FloatArray, int]:
    samples, rate = soundfile.read(path, dtype="float32")
    return samples, rate


def with_mark(samples: FloatArray, rate: int) -> FloatArray:
    mark = MarkFilter.load(rate, rate // 50, torch.device("cpu"))
    return mark.push([mark.open()], [samples])[0]


@pytest.mark.parametrize("path", RECORDINGS[:2], ids=lambda path: path.stem)
def test_marked_and_unmarked_recordings_are_told_apart(path: Path) -> None:
    samples, rate = recording(path)
    assert detector().confidence(samples, rate) < 0.1
    marked = with_mark(samples, rate)
    for quieter in (1.0, 0.5):
        assert detector().confidence(quieter * marked, rate) > 0.9
    assert detector().confidence(marked[rate // 3 : rate // 3 + 2 * rate], rate) > MARKED


def test_silence_and_noise_have_no_mark() -> None:
    assert detector().confidence(np.zeros(24_000, np.float32), 24_000) < 0.1
    assert detector().confidence((0.1 * np.random.default_rng(0).standard_normal(48_000)).astype(np.float32), 24_000) < 0.1


def test_the_package_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[watermark\]'"):
        load_weights()


def test_networks_are_those_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own classes, whose module imports what they do not need."""
    package: Any = SimpleNamespace(resource_filename=lambda *_: "", resample=None)
    for name in ("pkg_resources", "librosa", "torchaudio", "torchaudio.transforms", "scipy", "scipy.signal"):
        module = ModuleType(name)
        vars(module).update(vars(package), **dict.fromkeys(("Spectrogram", "InverseSpectrogram", "TimeStretch", "butter", "filtfilt")))
        monkeypatch.setitem(sys.modules, name, module)
    encoder = importlib.import_module("perth.perth_net.perth_net_implicit.model.encoder").Encoder(256, BINS).eval()
    decoder = importlib.import_module("perth.perth_net.perth_net_implicit.model.decoder").Decoder(256, BINS).eval()
    weights = load_weights()
    for network, name in ((encoder, "encoder."), (decoder, "decoder.")):
        network.load_state_dict({key.removeprefix(name): value for key, value in weights.items() if key.startswith(name)})
    samples, rate = recording(RECORDINGS[0])
    with torch.inference_mode():
        steady = torch.full((1, 1025, 31), 0.7)
        residual = (encoder(steady)[0] - steady)[0, :BINS, 15].numpy() * DB_PER_UNIT
        np.testing.assert_allclose(residual, steady_gains_db(weights), atol=1e-3)
        for sound in (samples, with_mark(samples, rate)):
            expected = float(decoder(detector().magnitudes(sound, rate)).clip(0, 1))
            assert detector().confidence(sound, rate) == pytest.approx(expected, abs=1e-5)
