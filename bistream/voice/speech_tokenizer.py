"""Reference recording in, speech tokens out: the Whisper log-mel, then ``speech_tokenizer_v2.onnx``."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bistream.types import FloatArray, IntArray
from bistream.voice.features import log_mel_16k
from bistream.voice.onnx_session import OnnxModel

SPEECH_TOKENIZER_FILE = "speech_tokenizer_v2.onnx"


class SpeechTokenizer:
    """25 tokens per second of a 16 kHz recording. Thread-safe."""

    def __init__(self, model: OnnxModel) -> None:
        self._model = model

    @classmethod
    def from_model_dir(cls, model_dir: str | Path, device: str = "auto", num_threads: int = 0) -> SpeechTokenizer:
        """device: auto | cpu | cuda | cuda:N; num_threads: 0 is onnxruntime's default. Raises ``CheckpointError``, ``ConfigError``."""
        return cls(OnnxModel(model_dir, SPEECH_TOKENIZER_FILE, inputs=2, device=device, num_threads=num_threads))

    def tokens(self, waveform: FloatArray) -> IntArray:
        """waveform float32 [N], 16 kHz, at most 30 s -> int32 [ceil((N // 160) / 4)], raw codes 0..6560.

        Raises ``InvalidInputError`` for a recording too short for one frame.
        """
        log_mel = log_mel_16k(waveform)
        length = np.array([log_mel.shape[1]], dtype=np.int32)
        return self._model.run(log_mel[None], length).reshape(-1).astype(np.int32)
