"""The speech tokenizer's network in PyTorch, with the ONNX file's weights: ours (``s3_network``) or that of the package ``s3tokenizer``.

On a GPU they need no onnxruntime-gpu. Loads torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from bistream.checkpoints.files import family_of
from bistream.checkpoints.reader import find_file
from bistream.config import RuntimeConfig
from bistream.errors import CheckpointError, ConfigError, EngineError
from bistream.types import FloatArray
from bistream.voice.fixed_sizes import BatchSize, FixedSizes, batch_sizes
from bistream.voice.s3_network import S3Network
from bistream.voice.s3_weights import state_dict_from_onnx
from bistream.voice.torch_features import TorchFeatures

PACKAGE = "s3tokenizer"
_PACKAGE_FILE, _PACKAGE_NAME = "speech_tokenizer_v2.onnx", "speech_tokenizer_v2_25hz"  # the package's name of this network


class TorchTokens:
    """Thread-safe."""

    takes_batches = True

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
    """Ours, or the package's where ``config.speech_tokenizer`` is s3tokenizer. Raises ``CheckpointError`` and ``ConfigError``."""
    family = family_of(config.model_dir)
    path = find_file(config.model_dir, family.speech_tokenizer_file)
    state = {key: tensor.to(device).contiguous() for key, tensor in state_dict_from_onnx(path).items()}
    ours = S3Network.from_state_dict(state, family.tokenizer_norm_eps)  # checks the file for both
    if config.speech_tokenizer != "s3tokenizer":
        return _tokens(ours.to(device).tokens, ours.config.mel_bins, device, batch_sizes(device))
    if path.name != _PACKAGE_FILE:
        raise ConfigError(f"Parameter 'speech_tokenizer' is {PACKAGE!r}, which runs {_PACKAGE_FILE} alone; set it to onnx or torch.")
    return _tokens(_load_package(path, ours).to(device).quantize, ours.config.mel_bins, device, ())


def _tokens(quantize: Callable[[Tensor, Tensor], Any], bins: int, device: torch.device, sizes: Sequence[BatchSize]) -> TorchTokens:
    """quantize: mels [B, bins, T] and lengths [B] -> codes [B, T'] and their lengths."""

    def network(frames: Tensor, lengths: Tensor) -> Tensor:
        codes: Tensor = quantize(frames.transpose(1, 2), lengths)[0]
        return codes

    return TorchTokens(FixedSizes("speech tokenizer", network, bins, device, sizes), TorchFeatures(device))


def _load_package(path: Path, ours: S3Network) -> Any:
    try:
        module = importlib.import_module(f"{PACKAGE}.model_v2")
    except Exception as error:  # of torchaudio, which the package imports, a library may be missing
        raise ConfigError(
            f"Parameter 'speech_tokenizer' is {PACKAGE!r}, but this package cannot be imported ({type(error).__name__}); "
            "install it with a torchaudio that fits torch, or set the parameter to onnx or torch."
        ) from error
    sizes = ours.config
    config = module.ModelConfig(n_mels=sizes.mel_bins, n_audio_state=sizes.width, n_audio_head=sizes.heads, n_audio_layer=sizes.layers)
    network = module.S3TokenizerV2(_PACKAGE_NAME, config)
    try:
        network.init_from_onnx(str(path))
    except Exception as error:  # it relies on names in the file, and asserts
        raise CheckpointError(f"{PACKAGE} cannot read {path.name} ({type(error).__name__}); set speech_tokenizer to onnx.") from error
    return network.eval()
