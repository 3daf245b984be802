"""Reference recording in, speaker embedding out: the Kaldi filter bank, then ``campplus.onnx``."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bistream.checkpoint import read_config
from bistream.errors import CheckpointError, InvalidInputError
from bistream.types import FloatArray
from bistream.voice.features import fbank_16k
from bistream.voice.onnx_session import OnnxModel

SPEAKER_ENCODER_FILE = "campplus.onnx"


class SpeakerEncoder:
    """One vector per 16 kHz recording. Thread-safe."""

    def __init__(self, model: OnnxModel, size: int) -> None:
        """size: of the embedding that the flow of the same model directory expects."""
        self._model = model
        self._size = size

    @classmethod
    def from_model_dir(cls, model_dir: str | Path, device: str = "auto", num_threads: int = 0) -> SpeakerEncoder:
        """device: auto | cpu | cuda | cuda:N; num_threads: 0 is onnxruntime's default. Raises ``CheckpointError``, ``ConfigError``."""
        model = OnnxModel(model_dir, SPEAKER_ENCODER_FILE, inputs=1, device=device, num_threads=num_threads)
        return cls(model, read_config(model_dir).flow.spk_embed_dim)

    def embedding(self, waveform: FloatArray) -> FloatArray:
        """waveform float32 [N], 16 kHz -> float32 [size], not normalised.

        Raises ``InvalidInputError`` for a recording shorter than one frame of 25 ms.
        """
        features = fbank_16k(waveform)
        if features.shape[0] == 0:
            raise InvalidInputError("The reference recording is shorter than 25 ms; send a longer one.")
        centred = features - features.mean(axis=0, keepdims=True)
        embedding = self._model.run(centred[None]).reshape(-1)
        if embedding.shape != (self._size,):
            raise CheckpointError(
                f"{SPEAKER_ENCODER_FILE} returned {embedding.shape[0]} values, not {self._size}; it is not the released model's file."
            )
        return embedding.astype(np.float32)
