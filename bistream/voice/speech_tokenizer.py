"""Reference recordings in, speech tokens out: the Whisper log-mel, then the network of the family's ONNX file.

Two programs can run that network (parameter ``speech_tokenizer``): onnxruntime, always on the CPU, and our PyTorch form of it. ``auto`` is
PyTorch on a GPU, where the file has the released network, and onnxruntime otherwise. The log-mel is computed where the network
is: on the host (1.5 ms for 5 s), or on the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bistream.checkpoints.files import family_of
from bistream.config import RuntimeConfig
from bistream.errors import CheckpointError
from bistream.types import FloatArray, IntArray
from bistream.voice.features import WHISPER_MEL_BINS, log_mel_16k
from bistream.voice.onnx_session import OnnxModel
from bistream.voice.programs import open_network

if TYPE_CHECKING:
    import torch

FRAMES_PER_TOKEN = 4  # Whisper's, of 10 ms: the network halves them twice
NUM_INPUTS = 2  # mels and their lengths
# Digits of codes that may differ between two programs: rounding turns about one in 10,000; a network that is not the file's turns most.
_MOST_DIFFERENT = 0.01


class TokenNetwork(Protocol):
    """Thread-safe. Mels are float32 [128, T], arrays or tensors."""

    def log_mel(self, waveform: FloatArray) -> Any:
        """float32 [N], 16 kHz -> the mel, where the network wants it. Raises ``InvalidInputError`` for too short a recording."""

    def codes(self, mels: Sequence[Any]) -> Sequence[NDArray[Any]]:
        """int [at least ceil(T / 4)] of each, as each alone gives them. Raises ``EngineError``."""


class OnnxNetwork:
    """One recording in each call: on a CPU several together only make the first wait for the last."""

    def __init__(self, model: OnnxModel) -> None:
        self._model = model

    def log_mel(self, waveform: FloatArray) -> FloatArray:
        return log_mel_16k(waveform)

    def codes(self, mels: Sequence[FloatArray]) -> Sequence[NDArray[Any]]:
        return [self._model.run(mel[None], np.array(mel.shape[1:], np.int32)).reshape(-1) for mel in mels]


class SpeechTokenizer:
    """25 tokens per second of a 16 kHz recording. Thread-safe."""

    def __init__(self, network: TokenNetwork) -> None:
        self._network = network

    @classmethod
    def from_config(cls, config: RuntimeConfig, before_cpu: Callable[[], None] = lambda: None) -> SpeechTokenizer:
        """before_cpu: called before the first computation if that is on the CPU. Raises ``CheckpointError`` and ``ConfigError``."""
        return cls(_open_network(config, before_cpu))

    def tokens(self, waveform: FloatArray) -> IntArray:
        """waveform float32 [N], 16 kHz, at most 30 s -> int32 [ceil((N // 160) / 4)], raw codes (released model: 0..6560).

        Raises ``InvalidInputError`` for a recording too short for one frame.
        """
        return self.tokens_of([waveform])[0]

    def tokens_of(self, waveforms: Sequence[FloatArray]) -> list[IntArray]:
        """``tokens`` of each. Raises as ``tokens`` does, for all of them."""
        return _tokens(self._network, [self._network.log_mel(waveform) for waveform in waveforms])


def _open_network(config: RuntimeConfig, before_cpu: Callable[[], None]) -> TokenNetwork:
    file_name = family_of(config.model_dir).speech_tokenizer_file

    def in_torch(device: torch.device) -> TokenNetwork:
        from bistream.voice import torch_tokenizers  # noqa: PLC0415  (loads torch)

        return torch_tokenizers.load(config, device)

    def in_onnxruntime() -> TokenNetwork:
        return OnnxNetwork(OnnxModel(config.model_dir, file_name, NUM_INPUTS, config.num_threads))

    def compare(network: TokenNetwork, original: TokenNetwork) -> None:
        check_same_codes(file_name, network, original)

    return open_network("speech tokenizer", config.speech_tokenizer, config, file_name, in_torch, in_onnxruntime, compare, before_cpu)


def check_same_codes(name: str, network: TokenNetwork, original: TokenNetwork) -> None:
    """Whether ``network``, in a batch with padding, computes what ``original`` does for each alone. Raises ``CheckpointError``.

    name: of the file. The graph's layers may all have their places while something without weights differs: an activation, the
    positions, the mask.
    """
    mels = _random_mels((300, 180))
    ours, theirs = (np.concatenate(_tokens(one, mels)) for one in (network, original))
    different = float((_digits(ours) != _digits(theirs)).mean())
    if different > _MOST_DIFFERENT:
        raise CheckpointError(
            f"{name} gives other codes in PyTorch than in onnxruntime ({different:.0%} of their digits), "
            "so it holds another network than the released one; set speech_tokenizer to onnx."
        )


def _digits(codes: IntArray) -> NDArray[Any]:
    """In base 3: [T] -> [T, 20], enough for any int32."""
    return codes[:, None] // 3 ** np.arange(20, dtype=np.int64) % 3


def _random_mels(frames: Sequence[int]) -> list[FloatArray]:
    generator = np.random.default_rng(0)
    return [generator.standard_normal((WHISPER_MEL_BINS, count)).astype(np.float32) for count in frames]


def _tokens(network: TokenNetwork, mels: Sequence[Any]) -> list[IntArray]:
    """mels float32 [128, T] each -> codes int32 [ceil(T / 4)] each."""
    rows = zip(network.codes(mels), mels, strict=True)
    return [row[: -(-mel.shape[1] // FRAMES_PER_TOKEN)].astype(np.int32) for row, mel in rows]
