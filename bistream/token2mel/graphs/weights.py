"""The estimator's weights in the form for packed evaluation, made once from the network's parameters.

Attention is folded: keys and values of a block are its stored inputs themselves, shared by all heads. Their projections
move to the query, q_h . (K_h y) = (K_h^T Q_h x) . y, and to the output, O_h (V_h sum p y) = (O_h V_h) sum p y, so that state is
read once per head and never projected again. The products of weights are computed in float32 and rounded once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bistream.token2mel.estimator import ConvBlock, Estimator, ResidualBlock, TransformerBlock, Unit
from bistream.token2mel.layers import WindowLinear


@dataclass(frozen=True)
class NormWeights:
    """LayerNorm, float32."""

    weight: Tensor
    bias: Tensor
    eps: float

    @property
    def arguments(self) -> dict[str, Any]:
        return {"weight": self.weight, "bias": self.bias, "eps": self.eps}


@dataclass(frozen=True)
class LinearWeights:
    """weight: [out, in]; a convolution's has its taps one after another."""

    weight: Tensor
    bias: Tensor


@dataclass(frozen=True)
class ConvWeights:
    linear: LinearWeights
    norm: NormWeights


@dataclass(frozen=True)
class ResidualWeights:
    first: ConvWeights
    second: ConvWeights
    shortcut: LinearWeights


@dataclass(frozen=True)
class BlockWeights:
    """query: [heads * width, width] and output: [width, heads * width], with key and value projections folded in.

    scale: of the scores. query has no bias.
    """

    heads: int
    scale: float
    norm_attention: NormWeights
    query: Tensor
    output: LinearWeights
    norm_feed_forward: NormWeights
    linear_in: LinearWeights
    linear_out: LinearWeights


@dataclass(frozen=True)
class UnitWeights:
    residual: ResidualWeights
    blocks: tuple[BlockWeights, ...]


@dataclass(frozen=True)
class EstimatorWeights:
    """units: down, mid ..., up."""

    units: tuple[UnitWeights, ...]
    down_conv: LinearWeights
    up_conv: LinearWeights
    final_block: ConvWeights
    final_projection: LinearWeights


@torch.no_grad()
def pack(network: Estimator) -> EstimatorWeights:
    """Matrices that are not folded share the network's memory."""
    return EstimatorWeights(
        units=tuple(_unit(unit) for unit in network.units if isinstance(unit, Unit)),
        down_conv=_linear(network.down_conv),
        up_conv=_linear(network.up_conv),
        final_block=_conv(network.final_block),
        final_projection=_linear(network.final_projection),
    )


def _unit(unit: Unit) -> UnitWeights:
    return UnitWeights(_residual(unit.residual), tuple(_block(block) for block in unit.blocks if isinstance(block, TransformerBlock)))


def _residual(block: ResidualBlock) -> ResidualWeights:
    return ResidualWeights(_conv(block.block1), _conv(block.block2), _linear(block.shortcut))


def _conv(block: ConvBlock) -> ConvWeights:
    return ConvWeights(_linear(block.conv), _norm(block.norm))


def _block(block: TransformerBlock) -> BlockWeights:
    inner, width = block.to_query.weight.shape
    size = inner // block.heads
    dtype = block.to_query.weight.dtype
    to_query = block.to_query.weight.float().view(block.heads, size, width)
    to_keys, to_values = block.to_keys_values.weight.float().view(2, block.heads, size, width)
    to_out = block.to_out.weight.float().view(width, block.heads, size)
    return BlockWeights(
        heads=block.heads,
        scale=1.0 / math.sqrt(size),
        norm_attention=_norm(block.norm_attention),
        query=torch.matmul(to_keys.transpose(1, 2), to_query).flatten(0, 1).to(dtype),
        output=LinearWeights(torch.einsum("ohd,hdi->ohi", to_out, to_values).flatten(1).to(dtype), block.to_out.bias.detach()),
        norm_feed_forward=_norm(block.norm_feed_forward),
        linear_in=_linear(block.linear_in),
        linear_out=_linear(block.linear_out),
    )


def _norm(norm: nn.LayerNorm) -> NormWeights:
    return NormWeights(norm.weight.detach().float(), norm.bias.detach().float(), norm.eps)


def _linear(linear: nn.Linear | WindowLinear) -> LinearWeights:
    return LinearWeights(linear.weight.detach().flatten(1), linear.bias.detach())
