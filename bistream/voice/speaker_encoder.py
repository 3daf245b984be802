"""Reference recordings in, speaker embeddings out: the Kaldi filter bank, then ``campplus.onnx``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bistream.checkpoint import read_config
from bistream.config import RuntimeConfig
from bistream.errors import CheckpointError, EngineError, InvalidInputError
from bistream.types import FloatArray
from bistream.voice.batching import MOST, Batching, groups
from bistream.voice.features import KALDI_MEL_BINS, fbank_16k
from bistream.voice.made_with import SPEAKER_ENCODER_FILE
from bistream.voice.onnx_providers import OnnxSettings, ShapeRange
from bistream.voice.onnx_session import OnnxModel

logger = logging.getLogger(__name__)

# Frames as in upstream's TensorRT build of this file (4, 500 and 3000); upstream's engine takes one recording.
RANGES = (ShapeRange((1, 4, KALDI_MEL_BINS), (1, 500, KALDI_MEL_BINS), (MOST, 3000, KALDI_MEL_BINS)),)
_CHECKED_FRAMES = 120
_ROUNDING = 1e-5  # relative: sums of a batch may have another order


class SpeakerEncoder:
    """One vector per 16 kHz recording. Thread-safe."""

    def __init__(self, model: OnnxModel, size: int) -> None:
        """size: of the embedding that the flow of the same model directory expects."""
        self._model = model
        self._size = size
        self.provider = model.provider  # of onnxruntime
        # Never padded: the network averages over time, and padding would count.
        self.batching = Batching.EQUAL if model.takes_batches and self._gives_equal_vectors() else Batching.ALONE

    @classmethod
    def from_model_dir(cls, model_dir: str | Path, device: str = "auto", num_threads: int = 0) -> SpeakerEncoder:
        """device: auto | cpu | cuda | cuda:N; num_threads: 0 is onnxruntime's default. Raises ``CheckpointError``, ``ConfigError``."""
        return cls.from_config(RuntimeConfig(model_dir=str(model_dir), device=device, num_threads=num_threads))

    @classmethod
    def from_config(cls, config: RuntimeConfig) -> SpeakerEncoder:
        """Raises ``CheckpointError`` and ``ConfigError``."""
        model = OnnxModel(config.model_dir, SPEAKER_ENCODER_FILE, RANGES, OnnxSettings.of(config))
        return cls(model, read_config(config.model_dir).flow.spk_embed_dim)

    def embedding(self, waveform: FloatArray) -> FloatArray:
        """waveform float32 [N], 16 kHz -> float32 [size], not normalised.

        Raises ``InvalidInputError`` for a recording shorter than one frame of 25 ms.
        """
        return self.embeddings_of([waveform])[0]

    def embeddings_of(self, waveforms: Sequence[FloatArray]) -> list[FloatArray]:
        """``embedding`` of each; those of equal length in one call of the network. Raises as ``embedding`` does, for all of them."""
        features = [_features(waveform) for waveform in waveforms]
        found: dict[int, FloatArray] = {}
        for group in groups([len(frames) for frames in features], self.batching):
            vectors = self._model.run(np.stack([features[position] for position in group])).reshape(len(group), -1)
            if vectors.shape[1] != self._size:
                raise CheckpointError(
                    f"{SPEAKER_ENCODER_FILE} returned {vectors.shape[1]} values, not {self._size}; it is not the released model's file."
                )
            found.update(zip(group, vectors.astype(np.float32), strict=True))
        return [found[position] for position in range(len(features))]

    def _gives_equal_vectors(self) -> bool:
        """Whether two recordings get in one call what each gets alone: an open batch axis does not say so."""
        frames = np.random.default_rng(0).standard_normal((2, _CHECKED_FRAMES, KALDI_MEL_BINS)).astype(np.float32)
        alone = [self._model.run(frames[index : index + 1]).reshape(-1) for index in range(2)]
        try:
            together: NDArray[Any] = self._model.run(frames)
        except EngineError:
            return False
        if together.size != sum(vector.size for vector in alone):
            return False
        scale = max(float(np.abs(vector).max()) for vector in alone)
        return bool(np.abs(together.reshape(2, -1) - np.stack(alone)).max() <= _ROUNDING * scale)


def _features(waveform: FloatArray) -> FloatArray:
    features = fbank_16k(waveform)
    if features.shape[0] == 0:
        raise InvalidInputError("The reference recording is shorter than 25 ms; send a longer one.")
    centred: FloatArray = features - features.mean(axis=0, keepdims=True)
    return centred
