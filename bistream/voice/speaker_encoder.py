"""Reference recordings in, what flow and vocoder know a speaker by out: the speaker embedding and the mel of the prompt.

The embedding is the Kaldi filter bank, then ``campplus.onnx``. Two programs can run that network (parameter ``speaker_encoder``):
onnxruntime, always on the CPU, and our PyTorch form of it. ``auto`` is PyTorch on a GPU, where the file has the released network, and
onnxruntime otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bistream.checkpoints.reader import read_config
from bistream.config import RuntimeConfig
from bistream.errors import CheckpointError, InvalidInputError
from bistream.types import FloatArray, SpeakerFeatures
from bistream.voice.build import prompt_mel
from bistream.voice.features import KALDI_MEL_BINS, MEL_HIGH_HZ, fbank_16k
from bistream.voice.made_with import SPEAKER_ENCODER_FILE
from bistream.voice.onnx_session import OnnxModel
from bistream.voice.programs import open_network

if TYPE_CHECKING:
    import torch

NUM_INPUTS = 1
# Between two programs, over the frames below: rounding leaves 1 - 1e-12. What lies between is a network that is not quite the file's.
LEAST_COSINE = 0.9999
_COMPARED_FRAMES = (420, 98, 230)  # of the second's, which end in the middle of one


class SpeakerNetwork(Protocol):
    """Thread-safe. Frames are float32 [T, 80], arrays or tensors."""

    def filter_bank(self, waveform: FloatArray) -> Any:
        """float32 [N], 16 kHz -> the Kaldi filter bank, where the network wants it."""

    def prompt_mels(self, waveforms: Sequence[FloatArray], high_hz: float) -> list[FloatArray]:
        """As ``build.prompt_mel``, of each."""

    def vectors(self, frames: Sequence[Any]) -> FloatArray:
        """float32 [B, size], as each alone gives them, but for the order of sums. Raises ``EngineError``."""


class OnnxSpeakers:
    """One recording in each call: the file's network averages over time, and padding would count."""

    def __init__(self, model: OnnxModel) -> None:
        self._model = model

    def filter_bank(self, waveform: FloatArray) -> FloatArray:
        return fbank_16k(waveform)

    def prompt_mels(self, waveforms: Sequence[FloatArray], high_hz: float) -> list[FloatArray]:
        return [prompt_mel(waveform, high_hz) for waveform in waveforms]

    def vectors(self, frames: Sequence[FloatArray]) -> FloatArray:
        return np.stack([self._model.run(one[None]).reshape(-1).astype(np.float32) for one in frames])


class SpeakerEncoder:
    """One vector and one mel per 16 kHz recording. Thread-safe."""

    def __init__(self, network: SpeakerNetwork, size: int, mel_high_hz: float = MEL_HIGH_HZ) -> None:
        """size: of the embedding that the flow of the same model directory expects. mel_high_hz: of the family."""
        self._network = network
        self._size = size
        self._mel_high_hz = mel_high_hz

    @classmethod
    def from_config(cls, config: RuntimeConfig, before_cpu: Callable[[], None] = lambda: None) -> SpeakerEncoder:
        """before_cpu: called before the first computation if that is on the CPU. Raises ``CheckpointError`` and ``ConfigError``."""
        network = _open_network(config, before_cpu)
        checkpoint = read_config(config.model_dir)
        return cls(network, checkpoint.flow.spk_embed_dim, checkpoint.family.mel_high_hz)

    def embedding(self, waveform: FloatArray) -> FloatArray:
        """waveform float32 [N], 16 kHz -> float32 [size], not normalised.

        Raises ``InvalidInputError`` for a recording shorter than one frame of 25 ms.
        """
        return self.embeddings_of([waveform])[0]

    def embeddings_of(self, waveforms: Sequence[FloatArray]) -> list[FloatArray]:
        """``embedding`` of each. Raises as ``embedding`` does, for all of them."""
        vectors = self._network.vectors([self._centred(waveform) for waveform in waveforms])
        if vectors.shape[1] != self._size:
            raise CheckpointError(
                f"{SPEAKER_ENCODER_FILE} returned {vectors.shape[1]} values, not {self._size}; it is not the released model's file."
            )
        return list(vectors)

    def features_of(self, waveforms: Sequence[FloatArray]) -> list[SpeakerFeatures]:
        """Embedding and mel of each. Raises as ``embedding`` and ``build.prompt_mel`` do, for all of them."""
        mels = self._network.prompt_mels(waveforms, self._mel_high_hz)
        return [SpeakerFeatures(*one) for one in zip(self.embeddings_of(waveforms), mels, strict=True)]

    def _centred(self, waveform: FloatArray) -> Any:
        frames = self._network.filter_bank(waveform)
        if len(frames) == 0:
            raise InvalidInputError("The reference recording is shorter than 25 ms; send a longer one.")
        return frames - frames.mean(0)


def _open_network(config: RuntimeConfig, before_cpu: Callable[[], None]) -> SpeakerNetwork:
    def in_torch(device: torch.device) -> SpeakerNetwork:
        from bistream.voice import torch_speakers  # noqa: PLC0415  (loads torch)

        return torch_speakers.load(config, device)

    def in_onnxruntime() -> SpeakerNetwork:
        return OnnxSpeakers(OnnxModel(config.model_dir, SPEAKER_ENCODER_FILE, NUM_INPUTS, config.num_threads))

    programs = in_torch, in_onnxruntime, check_same_vectors
    return open_network("speaker encoder", config.speaker_encoder, config, SPEAKER_ENCODER_FILE, *programs, before_cpu)


def check_same_vectors(network: SpeakerNetwork, original: SpeakerNetwork) -> None:
    """Whether ``network`` computes of several recordings together what ``original`` does of each alone. Raises ``CheckpointError``.

    The graph's layers may all have their places while something without weights differs: an activation, a stride, the length of a segment.
    Compared is how the recordings differ from their mean, which what all of them share would hide.
    """
    frames = _random_frames(_COMPARED_FRAMES)
    ours = network.vectors(frames)
    theirs = original.vectors(frames)
    centre = theirs.mean(axis=0)
    least = float(cosines(ours - centre, theirs - centre).min()) if ours.shape == theirs.shape else -1.0
    if not least >= LEAST_COSINE:
        raise CheckpointError(
            f"{SPEAKER_ENCODER_FILE} gives other embeddings in PyTorch than in onnxruntime (cosine {least:.4f}), "
            "so it holds another network than the released one; set speaker_encoder to onnx."
        )


def cosines(first: FloatArray, second: FloatArray) -> NDArray[Any]:
    """Of the rows of [B, size] with those of another: [B]."""
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    found: NDArray[Any] = (first * second).sum(axis=1) / lengths
    return found


def _random_frames(counts: Sequence[int]) -> list[FloatArray]:
    generator = np.random.default_rng(0)
    return [generator.standard_normal((count, KALDI_MEL_BINS)).astype(np.float32) for count in counts]
