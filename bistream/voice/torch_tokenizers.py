"""The speech tokenizer's network in PyTorch (``s3_network``) with the ONNX file's weights, as ``SpeechTokenizer`` wants it. Loads torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from bistream.checkpoints.files import family_of
from bistream.checkpoints.reader import find_file
from bistream.config import RuntimeConfig
from bistream.errors import EngineError
from bistream.types import FloatArray
from bistream.voice.fixed_sizes import FixedSizes, batch_sizes
from bistream.voice.s3_network import S3Network
from bistream.voice.s3_weights import state_dict_from_onnx
from bistream.voice.torch_features import TorchFeatures


class TorchTokens:
    """Thread-safe."""

    def __init__(self, network: FixedSizes, features: TorchFeatures) -> None:
        """network: mel frames of recordings -> codes int [at least ceil(T / 4)] of each."""
        self._network = network
        self._features = features

    @torch.inference_mode()
    def log_mel(self, waveform: FloatArray) -> Tensor:
        return self._features.log_mel_16k(self._features.load(waveform))

    def codes(self, mels: Sequence[Tensor | FloatArray]) -> list[NDArray[Any]]:
        try:
            return self._network([mel.T for mel in mels])
        except RuntimeError as error:
            raise EngineError(f"The speech tokenizer failed on this recording ({type(error).__name__}); try another recording.") from error


def load(config: RuntimeConfig, device: torch.device) -> TorchTokens:
    """Raises ``CheckpointError`` for a file that cannot be read or holds another network."""
    family = family_of(config.model_dir)
    path = find_file(config.model_dir, family.speech_tokenizer_file)
    state = {key: tensor.to(device).contiguous() for key, tensor in state_dict_from_onnx(path).items()}
    network = S3Network.from_state_dict(state, family.tokenizer_norm_eps).to(device)

    def codes(frames: Tensor, lengths: Tensor) -> Tensor:
        return network.tokens(frames.transpose(1, 2), lengths)[0]

    return TorchTokens(FixedSizes("speech tokenizer", codes, network.config.mel_bins, device, batch_sizes(device)), TorchFeatures(device))
