"""The speaker encoder: mel frames of a clip to the global tokens of its voice, and such tokens to the vector that the decoder reads.

ECAPA-TDNN (Desplanques et al., 2020) without its pooling, a Perceiver resampler (Jaegle et al., 2021), FSQ. Keys are those of the file;
tensors of the file that only training reads have no module here (``shapes``).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bistream.bicodec.config import SpeakerSizes
from bistream.bicodec.quantizers import ScalarQuantizer

DILATIONS = (2, 3, 4)  # of the blocks layer2, layer3, layer4
FIRST_KERNEL, BLOCK_KERNEL = 5, 3
HEAD_SIZE = 64
LEAST_NORM = 1e-12


class NormedConv(nn.Module):
    """Convolution, ReLU, batch norm, in this order."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(in_channels, out_channels, kernel, padding=kernel // 2)
        self.bn = nn.BatchNorm1d(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """[B, in, T] -> [B, out, T]."""
        output: Tensor = self.bn(self.conv(x).relu())
        return output


class Res2Conv(nn.Module):
    """Slices of the channels, one after the other: each also hears the result of the one before it; the last passes as it is."""

    def __init__(self, channels: int, scale: int, dilation: int) -> None:
        super().__init__()
        width = channels // scale
        self.convs = nn.ModuleList(
            nn.Conv1d(width, width, BLOCK_KERNEL, dilation=dilation, padding=dilation * (BLOCK_KERNEL // 2)) for _ in range(scale - 1)
        )
        self.bns = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(scale - 1))

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, T] -> the same."""
        *slices, last = x.chunk(len(self.convs) + 1, dim=1)
        done: list[Tensor] = []
        for piece, conv, norm in zip(slices, self.convs, self.bns, strict=True):
            done.append(norm(conv(piece + done[-1] if done else piece).relu()))
        return torch.cat([*done, last], dim=1)


class Gate(nn.Module):
    """Squeeze and excitation: each channel weighted by what all channels are on average."""

    def __init__(self, channels: int, size: int) -> None:
        super().__init__()
        self.linear1, self.linear2 = nn.Linear(channels, size), nn.Linear(size, channels)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, T] -> the same."""
        weights = self.linear2(self.linear1(x.mean(dim=2)).relu()).sigmoid()
        output: Tensor = x * weights[:, :, None]
        return output


class Block(nn.Module):
    def __init__(self, sizes: SpeakerSizes, dilation: int) -> None:
        super().__init__()
        channels = sizes.channels
        self.se_res2block = nn.Sequential(
            NormedConv(channels, channels),
            Res2Conv(channels, sizes.scale, dilation),
            NormedConv(channels, channels),
            Gate(channels, sizes.gate_size),
        )

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, T] -> the same."""
        output: Tensor = x + self.se_res2block(x)
        return output


class Ecapa(nn.Module):
    def __init__(self, sizes: SpeakerSizes) -> None:
        super().__init__()
        self.layer1 = NormedConv(sizes.mel_bins, sizes.channels, FIRST_KERNEL)
        self.layer2, self.layer3, self.layer4 = (Block(sizes, dilation) for dilation in DILATIONS)
        self.conv = nn.Conv1d(len(DILATIONS) * sizes.channels, sizes.pooled_channels, 1)

    def forward(self, mel: Tensor) -> Tensor:
        """[B, bins, T] -> [B, pooled_channels, T]."""
        outputs = [self.layer1(mel)]
        for block in (self.layer2, self.layer3, self.layer4):
            outputs.append(block(outputs[-1]))
        output: Tensor = self.conv(torch.cat(outputs[1:], dim=1)).relu()
        return output


class LatentAttention(nn.Module):
    """Attention of the latents over themselves and the context; neither bias, mask nor norm."""

    def __init__(self, size: int, attention_size: int) -> None:
        super().__init__()
        self.to_q = nn.Linear(size, attention_size, bias=False)
        self.to_kv = nn.Linear(size, 2 * attention_size, bias=False)
        self.to_out = nn.Linear(attention_size, size, bias=False)

    def forward(self, latents: Tensor, context: Tensor) -> Tensor:
        """latents [B, L, D], context [B, T, D] -> [B, L, D]."""
        keys, values = self.to_kv(torch.cat([latents, context], dim=1)).chunk(2, dim=-1)
        query, keys, values = (x.unflatten(-1, (-1, HEAD_SIZE)).transpose(1, 2) for x in (self.to_q(latents), keys, values))
        attended = F.scaled_dot_product_attention(query, keys, values)
        output: Tensor = self.to_out(attended.transpose(1, 2).flatten(2))
        return output


class GatedGelu(nn.Module):
    """The first half of the channels, times GELU of the second."""

    def forward(self, x: Tensor) -> Tensor:
        values, gate = x.chunk(2, dim=-1)
        return values * F.gelu(gate)


class RootMeanNorm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """Vectors of the length sqrt(size), weighted by gamma."""
        return F.normalize(x, dim=-1, eps=LEAST_NORM) * math.sqrt(len(self.gamma)) * self.gamma


class Perceiver(nn.Module):
    """A fixed number of latents that attend to frames of any number."""

    def __init__(self, sizes: SpeakerSizes) -> None:
        super().__init__()
        size, inner = sizes.latent_size, sizes.feed_forward_size
        self.latents = nn.Parameter(torch.zeros(sizes.tokens, size))
        self.proj_context = nn.Linear(sizes.pooled_channels, size)
        self.layers = nn.ModuleList(
            nn.ModuleList(
                [
                    LatentAttention(size, sizes.attention_size),
                    nn.Sequential(nn.Linear(size, 2 * inner), GatedGelu(), nn.Linear(inner, size)),
                ]
            )
            for _ in range(sizes.attention_layers)
        )
        self.norm = RootMeanNorm(size)

    def forward(self, frames: Tensor) -> Tensor:
        """[B, T, pooled_channels] -> [B, tokens, latent_size]."""
        context = self.proj_context(frames)
        latents = self.latents.expand(len(frames), -1, -1)
        for layer in self.layers:
            assert isinstance(layer, nn.ModuleList)
            attention, feed_forward = layer
            latents = attention(latents, context) + latents
            latents = feed_forward(latents) + latents
        output: Tensor = self.norm(latents)
        return output


class SpeakerEncoder(nn.Module):
    """``quantizer`` holds the two projections around FSQ, which has no weights."""

    def __init__(self, sizes: SpeakerSizes) -> None:
        super().__init__()
        dimensions = len(sizes.levels)
        self.speaker_encoder = Ecapa(sizes)
        self.perceiver_sampler = Perceiver(sizes)
        self.quantizer = nn.ModuleDict(
            {"project_in": nn.Linear(sizes.latent_size, dimensions), "project_out": nn.Linear(dimensions, sizes.latent_size)}
        )
        self.project = nn.Linear(sizes.tokens * sizes.latent_size, sizes.output_size)
        self.rounding = ScalarQuantizer(sizes.levels)

    def latents(self, mel: Tensor) -> Tensor:
        """[B, bins, T] -> before quantisation [B, tokens, latent_size]."""
        output: Tensor = self.perceiver_sampler(self.speaker_encoder(mel).transpose(1, 2))
        return output

    def tokens(self, mel: Tensor) -> Tensor:
        """[B, bins, T] -> int64 [B, tokens]."""
        return self.rounding.tokens(self.quantizer["project_in"](self.latents(mel)))

    def vector(self, tokens: Tensor) -> Tensor:
        """int64 [B, tokens] -> [B, output_size], what the decoder knows of the voice."""
        latents = self.quantizer["project_out"](self.rounding.values(tokens))
        output: Tensor = self.project(latents.transpose(1, 2).flatten(1))  # all tokens of the first dimension first
        return output
