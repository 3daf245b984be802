"""Weights in the layouts that kernels read, made once from the network's parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bistream.token2mel.encoder import ConformerLayer, FlowEncoder
from bistream.token2mel.layers import WindowLinear
from bistream.token2mel.sizes import UPSAMPLE_HISTORY_TOKENS


@dataclass(frozen=True)
class EncoderWeights:
    """position_projections: of each layer, [width, width]: row = feature of the query, the sines' columns before the cosines'.
    position_table: [positions, width], cosines before sines. upsample: see ``upsample_window``; the bias is repeated per frame."""

    position_projections: list[Tensor]
    position_table: Tensor
    upsample_weight: Tensor
    upsample_bias: Tensor


def pack_encoder(encoder: FlowEncoder, positions: int) -> EncoderWeights:
    """positions: of the longest sequence at frame rate."""
    layers = [layer for part in (encoder.token_layers, encoder.frame_layers) for layer in part if isinstance(layer, ConformerLayer)]
    weight = encoder.upsample.weight
    return EncoderWeights(
        position_projections=[_position_projection(layer.attention.to_positions.weight) for layer in layers],
        position_table=position_angles(positions, weight.shape[0]).to(weight),
        upsample_weight=upsample_window(encoder.upsample, encoder.ratio),
        upsample_bias=encoder.upsample.bias.repeat(encoder.ratio),
    )


def _position_projection(weight: Tensor) -> Tensor:
    """[feature, column] with sines in even and cosines in odd columns -> all sines, then all cosines."""
    return torch.cat([weight[:, 0::2], weight[:, 1::2]], dim=1).contiguous()


def position_angles(positions: int, width: int) -> Tensor:
    """Cosines, then sines, of position * 10000 ** (-2 k / width), float32 [positions, width]; the angles in float64."""
    rate = torch.exp(torch.arange(0, width, 2, dtype=torch.float64) * -(math.log(10000.0) / width))
    angle = torch.arange(positions, dtype=torch.float64)[:, None] * rate
    return torch.cat([angle.cos(), angle.sin()], dim=1).float()


def upsample_window(conv: WindowLinear, ratio: int) -> Tensor:
    """The upsampling convolution as one over tokens: [ratio * width, 1 + history, width].

    Output frame f of a token is a convolution over frames repeated ``ratio`` times; taps that fall on the same token add up.
    """
    width, kernel, channels = conv.weight.shape
    taps = conv.weight.float()
    window = torch.zeros(ratio, width, UPSAMPLE_HISTORY_TOKENS + 1, channels, device=taps.device)
    for frame in range(ratio):
        for tap in range(kernel):
            token = (frame - (kernel - 1) + tap) // ratio + UPSAMPLE_HISTORY_TOKENS
            window[frame, :, token] += taps[:, tap]
    return window.flatten(0, 1).to(conv.weight.dtype).contiguous()
