"""The speaker encoder's network in PyTorch (``campplus_network``), as ``SpeakerEncoder`` wants it. Loads torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from bistream.checkpoints.reader import find_file
from bistream.config import RuntimeConfig
from bistream.errors import EngineError
from bistream.types import FloatArray
from bistream.voice.campplus_network import CampplusNetwork
from bistream.voice.campplus_weights import read_campplus
from bistream.voice.features import KALDI_MEL_BINS
from bistream.voice.fixed_sizes import FixedSizes, batch_sizes
from bistream.voice.made_with import SPEAKER_ENCODER_FILE
from bistream.voice.torch_features import TorchFeatures


class TorchSpeakers:
    """Thread-safe."""

    def __init__(self, network: CampplusNetwork, device: torch.device) -> None:
        self._network = FixedSizes("speaker encoder", network.to(device), KALDI_MEL_BINS, device, batch_sizes(device))
        self._features = TorchFeatures(device)

    @torch.inference_mode()
    def filter_bank(self, waveform: FloatArray) -> Tensor:
        return self._features.fbank_16k(self._features.load(waveform))

    @torch.inference_mode()
    def prompt_mels(self, waveforms: Sequence[FloatArray], high_hz: float) -> list[FloatArray]:
        mels = [self._features.prompt_mel(self._features.load(waveform), high_hz) for waveform in waveforms]
        return [mel.cpu().numpy() for mel in mels]  # all are queued before the first is waited for

    def vectors(self, frames: Sequence[Tensor | FloatArray]) -> FloatArray:
        try:
            return np.stack(self._network(frames))
        except RuntimeError as error:
            raise EngineError(f"The speaker encoder failed on this recording ({type(error).__name__}); try another recording.") from error


def load(config: RuntimeConfig, device: torch.device) -> TorchSpeakers:
    """Raises ``CheckpointError`` for a file that cannot be read or holds another network."""
    network = CampplusNetwork.from_state_dict(*read_campplus(find_file(config.model_dir, SPEAKER_ENCODER_FILE)))
    return TorchSpeakers(network, device)
