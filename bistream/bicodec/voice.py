"""A recording to its tokens: semantic ones, which say what is spoken and how, and global ones, which say who speaks."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from bistream.bicodec.network import BiCodec
from bistream.bicodec.recording import mel_frames, normalize_volume, reference_clip, unit_variance
from bistream.bicodec.wav2vec2 import Wav2Vec2
from bistream.bicodec.wav2vec2_weights import load_wav2vec2
from bistream.bicodec.weights import load_codec
from bistream.errors import InvalidInputError
from bistream.types import FloatArray, IntArray

LEAST_S = 0.5  # as ``min_reference_s``, which is checked where a request comes in
LEAST_PEAK = 1e-4


@dataclass(frozen=True)
class CodecVoice:
    """semantic_tokens int32 [P], 50 a second; global_tokens int32 [32]."""

    semantic_tokens: IntArray
    global_tokens: IntArray


class VoiceReader:
    """Thread-safe. One recording in a call: wav2vec2 hears padding, so that recordings of different lengths cannot share one."""

    def __init__(self, codec: BiCodec, wav2vec2: Wav2Vec2 | None, device: torch.device) -> None:
        """wav2vec2: None for a reader of global tokens alone."""
        self._codec, self._wav2vec2, self._device = codec, wav2vec2, device
        self._lock = threading.Lock()  # of the networks

    def read(self, recording: FloatArray) -> CodecVoice:
        """float32 [N], 16 kHz. Raises ``InvalidInputError`` for one that is shorter than 0.5 s, silent or not finite."""
        samples = self.prepared(recording)
        return CodecVoice(self.semantic_tokens(samples), self.global_tokens(samples))

    def prepared(self, recording: FloatArray) -> FloatArray:
        """The recording at the volume that the checkpoint was trained with, float32 [N]. Raises ``InvalidInputError``."""
        sizes = self._codec.config.recording
        _check(recording, sizes.sample_rate)
        samples = recording.astype(np.float64)
        return (normalize_volume(samples) if sizes.normalizes_volume else samples).astype(np.float32)

    def semantic_tokens(self, samples: FloatArray) -> IntArray:
        """Of the whole recording: about one for each 20 ms, int32 [P]."""
        assert self._wav2vec2 is not None, "a reader of global tokens alone"
        values = torch.from_numpy(unit_variance(samples)).to(self._device)[None]
        with self._lock:
            tokens: IntArray = self._codec.semantic_tokens(self._wav2vec2.features(values))[0].int().cpu().numpy()
        return tokens

    def global_tokens(self, samples: FloatArray) -> IntArray:
        """Of the recording's beginning, int32 [32]."""
        config = self._codec.config
        clip = reference_clip(samples.astype(np.float64), config.recording)
        mel = torch.from_numpy(mel_frames(clip, config.mel)).to(self._device)[None]
        with self._lock:
            tokens: IntArray = self._codec.global_tokens(mel)[0].int().cpu().numpy()
        return tokens


def load_reader(model_dir: str | Path, device: torch.device, global_tokens_alone: bool = False) -> VoiceReader:
    """global_tokens_alone: without wav2vec2, 1.3 GB. Raises ``CheckpointError``."""
    wav2vec2 = None if global_tokens_alone else load_wav2vec2(model_dir, device)
    return VoiceReader(load_codec(model_dir, device), wav2vec2, device)


def _check(recording: FloatArray, sample_rate: int) -> None:
    if recording.ndim != 1:
        raise InvalidInputError(f"The recording has the shape {list(recording.shape)}; send one channel.")
    duration_s = len(recording) / sample_rate
    if duration_s < LEAST_S:
        raise InvalidInputError(f"The recording lasts {duration_s:.3f} s at {sample_rate} Hz; send at least {LEAST_S:g} s.")
    if not np.isfinite(recording).all():
        raise InvalidInputError("The recording contains NaN or infinity; send finite samples in [-1, 1].")
    if float(np.abs(recording).max()) < LEAST_PEAK:
        raise InvalidInputError("The recording is silent; send a recording of somebody who speaks.")
