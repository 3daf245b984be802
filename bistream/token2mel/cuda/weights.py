"""Weights in the layouts that kernels read, made once from the network's parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bistream.token2mel.encoder import ConformerLayer, FlowEncoder
from bistream.token2mel.estimator import Estimator, TransformerBlock, Unit
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


@dataclass(frozen=True)
class FewWeights:
    """For ``launches_few``. keys, outputs: of each transformer block, the key projection [heads, width in ``lane_order``, head] and
    the output projection's transpose [heads * head, width]. windows: of each convolution and number of features, see ``window_parts``."""

    keys: dict[nn.Module, Tensor]
    outputs: dict[nn.Module, Tensor]
    windows: dict[tuple[nn.Module, int], Tensor]


@dataclass(frozen=True)
class FlowWeights:
    """few: None without a bucket for few rows."""

    encoder: EncoderWeights
    few: FewWeights | None


def pack_few(network: Estimator, heads: int, window_features: Iterable[int]) -> FewWeights:
    """window_features: the distinct ``FewTiles.window_features`` of the buckets."""
    weights = FewWeights({}, {}, {})
    units = [unit for unit in network.units if isinstance(unit, Unit)]
    for block in (block for unit in units for block in unit.blocks if isinstance(block, TransformerBlock)):
        inner, width = block.to_query.weight.shape
        keys = block.to_keys_values.weight[:inner].view(heads, inner // heads, width)
        weights.keys[block] = keys[:, :, lane_order(width).to(keys.device)].transpose(1, 2).contiguous()
        weights.outputs[block] = block.to_out.weight.T.contiguous()
    convs: list[tuple[WindowLinear, WindowLinear | None]] = [(network.down_conv, None), (network.up_conv, None)]
    convs.append((network.final_block.conv, None))
    for residual in (unit.residual for unit in units):
        convs += [(residual.block1.conv, residual.shortcut), (residual.block2.conv, None)]
    for conv, shortcut in convs:
        for features in window_features:
            weights.windows[conv, features] = window_parts(conv, shortcut, features)
    return weights


def lane_order(width: int) -> Tensor:
    """Order of the features as rows of a matrix product of four warps that gives each thread 8 neighbouring features."""
    return torch.arange(width).view(4, 8, width // 64, 2).permute(2, 0, 3, 1).reshape(-1)


def window_parts(conv: WindowLinear, shortcut: WindowLinear | None, features: int) -> Tensor:
    """Weights of the three taps and of the shortcut (zeros without one), [width / features, 4, features, channels]."""
    straight = torch.zeros_like(conv.weight[:, :1]) if shortcut is None else shortcut.weight
    joined = torch.cat([conv.weight, straight], dim=1)
    return joined.view(-1, features, 4, joined.shape[2]).transpose(1, 2).contiguous()
