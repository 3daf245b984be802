"""Weights of the language model in the format of the recorded step: 16 bit, norms folded in, query heads padded.

In: ``ModelWeights`` (preferably in float32, so that a weight is rounded once). Out: ``GraphWeights`` on the device.
RMSNorm's weight vector multiplies the columns of the following projection. The decoding template of ``flex_attention`` requires a
power of two of query heads per key/value head; the padding heads are zero rows of the query projection and zero columns of the
output projection, so they do not change the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from bistream.checkpoints.config import LanguageModelConfig
from bistream.text2token.qwen2 import rope_tables
from bistream.text2token.weights import LayerWeights, ModelWeights


class LayerTensors(NamedTuple):
    """One layer. Matrices are [out, in], as ``torch.nn.functional.linear`` takes them."""

    qkv_weight: Tensor  # [(padded query heads + 2 * kv_heads) * head_size, hidden], input norm folded in
    qkv_bias: Tensor
    output_weight: Tensor  # [hidden, padded query heads * head_size]
    gate_up_weight: Tensor  # [2 * intermediate, hidden], gate first, post norm folded in
    down_weight: Tensor  # [hidden, intermediate]


@dataclass(frozen=True)
class GraphWeights:
    embedding: Tensor  # [TokenSpace.size, hidden]
    layers: tuple[LayerTensors, ...]
    head_weight: Tensor  # [TokenSpace.num_scores, hidden], final norm folded in
    head_bias: Tensor  # float32
    cos: Tensor  # float32 [max_position_embeddings, head_size]
    sin: Tensor  # first half of a head negated, because it multiplies the head with its halves swapped


def padded_query_heads(config: LanguageModelConfig) -> int:
    """Query heads after padding: a power of two per key/value head."""
    share = config.num_attention_heads // config.num_key_value_heads
    return config.num_key_value_heads * (1 << (share - 1).bit_length())


def fold_weights(weights: ModelWeights, config: LanguageModelConfig, device: torch.device, dtype: torch.dtype) -> GraphWeights:
    """dtype: bfloat16, or float16 for GPUs without it; float32 for comparisons."""

    def plain(tensor: Tensor, kind: torch.dtype = dtype) -> Tensor:
        return tensor.to(device=device, dtype=kind).contiguous()

    def fold(matrix: Tensor, norm: Tensor) -> Tensor:
        return matrix.to(device).float() * norm.to(device).float()

    def layer_of(layer: LayerWeights) -> LayerTensors:
        return LayerTensors(
            qkv_weight=plain(_pad_query(fold(layer.qkv_weight, layer.input_norm), config)),
            qkv_bias=plain(_pad_query(layer.qkv_bias, config)),
            output_weight=plain(_pad_groups(layer.output_weight.T, config).T),
            gate_up_weight=plain(fold(layer.gate_up_weight, layer.post_norm)),
            down_weight=plain(layer.down_weight),
        )

    cos, sin = rope_tables(config, device)
    half = config.head_size // 2
    return GraphWeights(
        embedding=plain(weights.embedding),
        layers=tuple(layer_of(layer) for layer in weights.layers),
        head_weight=plain(fold(weights.head_weight, weights.final_norm)),
        head_bias=plain(weights.head_bias, torch.float32),
        cos=cos,
        sin=torch.cat((-sin[:, :half], sin[:, half:]), dim=1),
    )


def _pad_query(rows: Tensor, config: LanguageModelConfig) -> Tensor:
    """[(heads + 2 * kv_heads) * head_size, ...] -> the same with padded query heads."""
    num_query_rows = config.num_attention_heads * config.head_size
    return torch.cat((_pad_groups(rows[:num_query_rows], config), rows[num_query_rows:]))


def _pad_groups(rows: Tensor, config: LanguageModelConfig) -> Tensor:
    """[heads * head_size, ...] -> [padded heads * head_size, ...]: zero rows at the end of every key/value head's group."""
    groups = rows.reshape(config.num_key_value_heads, -1, *rows.shape[1:])
    missing = (padded_query_heads(config) - config.num_attention_heads) // config.num_key_value_heads * config.head_size
    padding = (0, 0) * (rows.dim() - 1) + (0, missing)
    return functional.pad(groups, padding).reshape(-1, *rows.shape[1:])
