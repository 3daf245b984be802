"""Says whether a recording has the mark, with the detector of the package resemble-perth (``library``)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from bistream.audio.resample import resample
from bistream.types import FloatArray
from bistream.watermark.library import BINS, FFT_SIZE, HOP, SAMPLE_RATE, convolved, load_weights, normalised

MARKED = 0.5  # confidence from which a recording counts as marked; the package rounds there
SHORTEST_S = 0.5
_PACES = {"slow": 1.25, "normal": 1.0, "fast": 0.75}  # at which the detector listens: the sound may have been stretched
_FAINT = 0.05  # of the loudest frame: fainter ones do not count


class Detector:
    """Raises ``ConfigError`` where the package is not installed."""

    def __init__(self) -> None:
        self._weights: Mapping[str, Tensor] = load_weights()

    @torch.inference_mode()
    def confidence(self, samples: FloatArray, sample_rate: int) -> float:
        """0 to 1 that float32 [N], at least ``SHORTEST_S``, has the mark; ``MARKED`` and more says so. Silence has none."""
        magnitudes = self.magnitudes(samples, sample_rate)
        loudness = magnitudes.sum(dim=1, keepdim=True)
        counts = (loudness > _FAINT * loudness.max()).float()
        if not counts.any():
            return 0.0
        found = torch.stack([self._heard(name, pace, magnitudes[:, :BINS], counts) for name, pace in _PACES.items()])
        trust, marks = found[:, 0].softmax(dim=0), found[:, 1]
        return float(np.clip((trust * marks).sum().item(), 0.0, 1.0))

    @staticmethod
    def magnitudes(samples: FloatArray, sample_rate: int) -> Tensor:
        """What the networks see: float32 [1, FFT_SIZE / 2 + 1, frames]."""
        sound = torch.from_numpy(resample(samples, sample_rate, SAMPLE_RATE))
        spectrum = torch.stft(sound, FFT_SIZE, HOP, window=torch.hann_window(FFT_SIZE), return_complex=True)
        return normalised(spectrum.abs())[None]

    def _heard(self, name: str, pace: float, magnitudes: Tensor, counts: Tensor) -> Tensor:
        """At one pace: float32 [2], trust and mark, the means over the frames that count."""
        frames = int(magnitudes.shape[2] * pace)
        if pace != 1.0:
            magnitudes = functional.interpolate(magnitudes, size=frames, mode="linear", align_corners=True)
            counts = functional.interpolate(counts, size=frames, mode="nearest")
        found = convolved(self._weights, f"decoder.{name}_layers", magnitudes)
        mean: Tensor = ((found * counts).sum(dim=2) / counts.sum(dim=2))[0]
        return mean
