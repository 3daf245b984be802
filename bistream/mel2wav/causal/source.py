"""Pitch and harmonic source of the causal vocoder. Both go on where the previous call stopped.

The phase is the reference's: it stands still for the 480 samples of a mel frame and is rounded to float32 as there. The network was
trained with that; a smooth phase would be another signal. The sum over frames is carried in float64, so it does not depend on the pieces.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bistream.checkpoints.config import CausalVocoderConfig
from bistream.mel2wav.causal.layers import CausalConv, LayerMemory
from bistream.mel2wav.hift import CONDNET_INDICES

F0_KERNEL = 3  # of all convolutions but the first, which looks right


class CausalF0Predictor(nn.Module):
    """Five convolutions, the first of which looks ``f0_look_right`` frames to the right, then one non-negative number per frame, in Hz.

    Computed in float64, as in the reference: the source sums it over the whole utterance.
    """

    def __init__(self, config: CausalVocoderConfig) -> None:
        super().__init__()
        first, *rest = CONDNET_INDICES
        layers: dict[str, nn.Module] = {str(first): nn.Conv1d(config.in_channels, config.f0_channels, config.f0_look_right + 1)}
        layers |= {str(index): CausalConv(config.f0_channels, config.f0_channels, F0_KERNEL) for index in rest}
        self.condnet = nn.ModuleDict(layers)
        self.classifier = nn.Linear(config.f0_channels, 1)
        self.double()

    def forward(self, mel: Tensor, memory: LayerMemory) -> Tensor:
        """mel [B, 80, N + f0_look_right], zeros behind its end -> f0 [B, N], float64."""
        x = mel.double()
        for conv in self.condnet.values():
            assert isinstance(conv, nn.Conv1d)
            x = F.elu(_convolved(memory.extend(x, conv.history) if isinstance(conv, CausalConv) else x, conv))
        f0: Tensor = self.classifier(x.transpose(1, 2)).squeeze(-1).abs()
        return f0


def _convolved(x: Tensor, conv: nn.Conv1d) -> Tensor:
    """[B, in, N + kernel - 1] -> [B, out, N]. As a product: cuDNN has no fast convolution in float64."""
    windows = x.unfold(2, conv.kernel_size[0], 1).transpose(1, 2).flatten(2)  # [B, N, in * kernel]
    return F.linear(windows, conv.weight.flatten(1), conv.bias).transpose(1, 2)


class CausalSource(nn.Module):
    """Sines of f0 and its overtones plus noise, merged into one signal."""

    def __init__(self, config: CausalVocoderConfig) -> None:
        super().__init__()
        self.config = config
        self.samples_per_frame = math.prod(config.upsample_rates) * config.istft_hop_len
        self.l_linear = nn.Linear(config.nb_harmonics + 1, 1)
        self.register_buffer("overtones", torch.arange(1, config.nb_harmonics + 2, dtype=torch.float32)[:, None], persistent=False)
        self.overtones: Tensor

    def merge_noise(self, noise: Tensor) -> Tensor:
        """Noise per harmonic [..., H] -> its contribution [...] to the output of ``l_linear``."""
        merged: Tensor = noise @ self.l_linear.weight[0]
        return merged

    def forward(self, f0: Tensor, merged_noise: Tensor, cycles: Tensor) -> tuple[Tensor, Tensor]:
        """f0 float32 [B, N] in Hz, merged_noise [B, 480 N], cycles float64 [B, H]: the sums of the frames before.

        Returns the source [B, 480 N] and the sums at each frame, float64 [B, H, N].
        """
        config = self.config
        advance = (f0[:, None, :] * self.overtones / config.sampling_rate) % 1  # cycles per sample [B, H, N]
        sums = cycles[:, :, None] + advance.double().cumsum(-1)
        phase = sums.float() * 2 * math.pi * self.samples_per_frame
        merged = (torch.sin(phase) * self.l_linear.weight[0][:, None]).sum(1)  # [B, N]
        voiced = f0 > config.nsf_voiced_threshold
        tone = torch.where(voiced, config.nsf_alpha * merged, 0.0) + self.l_linear.bias
        gain = torch.where(voiced, config.nsf_sigma, config.nsf_alpha / 3)
        noise = merged_noise.view(len(f0), -1, self.samples_per_frame)
        return torch.tanh(tone[:, :, None] + gain[:, :, None] * noise).flatten(1), sums
