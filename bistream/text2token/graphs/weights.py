"""Weights of the language model in the format of the recorded step: 16 bit, norms folded in, features in the order of the kernels.

In: ``ModelWeights`` (preferably in float32, so that a weight is rounded once). Out: ``GraphWeights`` on the device.
RMSNorm's weight vector multiplies the columns of the following projection; the rest of the norm is one factor per row.
Features that a kernel combines lie side by side, in groups of 8: a head's first half and its rotation partners, gate and up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from bistream.checkpoints.config import LanguageModelConfig
from bistream.text2token.qwen2 import rope_tables
from bistream.text2token.weights import LayerWeights, ModelWeights

GROUP = 8  # features
HEAD_TILE = 64  # the head has a multiple of so many rows


class LayerTensors(NamedTuple):
    """One layer. Matrices are [out, in], as ``torch.nn.functional.linear`` takes them."""

    qkv_weight: Tensor  # [(query heads + 2 * kv_heads) * head_size, hidden], input norm folded in; groups of both halves alternate
    qkv_bias: Tensor  # float32, in the order of the heads
    output_weight: Tensor  # [hidden, hidden]
    gate_up_weight: Tensor  # [2 * intermediate, hidden], groups of gate and up alternate, post norm folded in
    down_weight: Tensor  # [hidden, intermediate]


@dataclass(frozen=True)
class GraphWeights:
    embedding: Tensor  # [TokenSpace.size, hidden]
    layers: tuple[LayerTensors, ...]
    head_weight: Tensor  # [TokenSpace.num_scores, padded with zeros to whole tiles; hidden], final norm folded in
    head_bias: Tensor  # float32, padded likewise
    cos: Tensor  # float32 [max_position_embeddings, head_size / 2]
    sin: Tensor


def fold_weights(weights: ModelWeights, config: LanguageModelConfig, device: torch.device, dtype: torch.dtype) -> GraphWeights:
    """dtype: of 16 bit; float32 for comparisons."""

    def plain(tensor: Tensor, kind: torch.dtype = dtype) -> Tensor:
        return tensor.to(device=device, dtype=kind).contiguous()

    def fold(matrix: Tensor, norm: Tensor) -> Tensor:
        return matrix.to(device).float() * norm.to(device).float()

    def layer_of(layer: LayerWeights) -> LayerTensors:
        qkv = fold(layer.qkv_weight, layer.input_norm).view(-1, config.head_size, config.hidden_size)
        return LayerTensors(
            qkv_weight=plain(alternate(*qkv.chunk(2, dim=1)).flatten(0, 1)),
            qkv_bias=plain(layer.qkv_bias, torch.float32),
            output_weight=plain(layer.output_weight),
            gate_up_weight=plain(alternate(*fold(layer.gate_up_weight, layer.post_norm)[None].chunk(2, dim=1))[0]),
            down_weight=plain(layer.down_weight),
        )

    cos, sin = rope_tables(config, device)
    half = config.head_size // 2
    folded = GraphWeights(
        embedding=plain(weights.embedding),
        layers=tuple(layer_of(layer) for layer in weights.layers),
        head_weight=plain(weights.head_weight),
        head_bias=plain(weights.head_bias, torch.float32),
        cos=cos[:, :half].contiguous(),
        sin=sin[:, :half].contiguous(),
    )
    return with_head(folded, weights.head_weight, weights.head_bias, weights.final_norm)


def with_head(weights: GraphWeights, head: Tensor, bias: Tensor, final_norm: Tensor) -> GraphWeights:
    """The same body with another head: head float32 [rows, hidden], bias [rows], final_norm [hidden]."""
    like, missing = weights.head_weight, -len(head) % HEAD_TILE
    folded = (head.to(like.device).float() * final_norm.to(like.device).float()).to(like.dtype)
    padded_bias = functional.pad(bias.to(like.device, torch.float32), (0, missing))
    return replace(weights, head_weight=functional.pad(folded, (0, 0, 0, missing)), head_bias=padded_bias)


def alternate(first: Tensor, second: Tensor) -> Tensor:
    """Two of [n, rows, ...] -> [n, 2 * rows, ...], ``GROUP`` rows of one, then of the other."""
    groups = [part.reshape(len(part), -1, GROUP, *part.shape[2:]) for part in (first, second)]
    return torch.stack(groups, dim=2).flatten(1, 3)
