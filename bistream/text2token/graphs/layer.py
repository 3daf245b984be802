"""The functions of a step, each compiled separately; plain PyTorch, run eagerly without a GPU.

    begin_rows   the host's row fields -> embedded ids, block lists, rotary cos and sin
    run_layer    one Qwen2 layer over the rows, keys and values into the cache (compiled once per row count, called per layer)
    finish_rows  final norm
    sample_rows  scores -> chosen ids, sampler state updated
    begin_turns  before a step in which turns begin: ``SamplerState.start_turns`` and the block tables of new sequences

The residual stream is float32: more exact, and residual + projection does not become a matrix product that first copies its addend.
A layer leaves its last addition to the next layer, whose norm kernel performs it.

The largest float16 (GPUs without bfloat16) is 65504. Residual, norms, scores and rotation are computed in float32; normalised inputs
are at most the square root of the hidden size; the product of gate and up is clamped. The outputs of projections are not: upstream's
own float16 mode keeps all of them and the residual stream in float16, so a checkpoint that works there stays in range here.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from bistream.text2token.graphs.attention import AttentionOptions, BlockLists, attend, list_blocks
from bistream.text2token.graphs.weights import LayerTensors
from bistream.text2token.sampler import Sampler, SamplerState

SLOT, POSITION, TOKEN, SAMPLES = 0, 1, 3, 4  # fields of a row, see ``write_rows``


class RowTensors(NamedTuple):
    """The rows of a step."""

    sampling_slots: Tensor  # int64 [n]: the row's slot where it samples, else the filler slot
    places: Tensor  # int64 [n]: physical position in the cache
    cos: Tensor  # float32 [n, 1, 1, head_size]
    sin: Tensor
    lists: BlockLists


class LayerShape(NamedTuple):
    num_query_heads: int  # padded
    num_kv_heads: int
    eps: float
    attention: AttentionOptions


class RowInputs(NamedTuple):
    """Inputs of ``begin_rows`` besides the rows."""

    last_id: Tensor
    embedding: Tensor
    table: Tensor  # int32 [slots, blocks of the longest sequence]
    cos: Tensor
    sin: Tensor


def begin_rows(fields: Tensor, inputs: RowInputs) -> tuple[Tensor, RowTensors]:
    """fields: int32 [n, NUM_FIELDS]. Returns the embedded ids [n, hidden] and the rows.

    The last slot is the filler slot; padding rows are at its position 0.
    """
    slots, positions, given = fields[:, SLOT].long(), fields[:, POSITION].clamp(min=0).long(), fields[:, TOKEN]
    ids = torch.where(given < 0, inputs.last_id[slots], given)
    lists = list_blocks(inputs.table, slots, positions)
    rows = RowTensors(
        sampling_slots=torch.where(fields[:, SAMPLES] > 0, slots, len(inputs.table) - 1),
        places=lists.hidden_from.long() - 1,
        cos=inputs.cos[positions][:, None, None],
        sin=inputs.sin[positions][:, None, None],
        lists=lists,
    )
    return inputs.embedding[ids], rows


def run_layer(
    residual: Tensor, addend: Tensor, weights: LayerTensors, memory: Tensor, rows: RowTensors, shape: LayerShape
) -> tuple[Tensor, Tensor]:
    """residual float32 [n, hidden]; addend 16 bit [n, hidden], not yet added to it. Returns both for the next layer.

    memory [2 (key, value), positions, kv_heads, head_size] is written before it is read, so rows of one sequence see each other.
    """
    residual = residual + addend
    fused = functional.linear(_normalize(residual, shape.eps, addend.dtype), weights.qkv_weight, weights.qkv_bias)
    heads = fused.view(len(fused), -1, 1, memory.shape[-1])
    query = _rotate(heads[:, : shape.num_query_heads], rows).to(heads.dtype)
    memory[:, rows.places] = _keys_and_values(heads[:, shape.num_query_heads :], rows, shape.num_kv_heads)
    attended = attend(query, memory, rows.lists, shape.attention)
    residual = residual + functional.linear(attended, weights.output_weight)
    gate_up = functional.linear(_normalize(residual, shape.eps, addend.dtype), weights.gate_up_weight)
    return residual, functional.linear(_gated(gate_up), weights.down_weight)


def finish_rows(residual: Tensor, addend: Tensor, eps: float) -> Tensor:
    """-> 16 bit [n, hidden], the input of the head."""
    return _normalize(residual + addend, eps, addend.dtype)


def head_scores(normalized: Tensor, head_weight: Tensor) -> Tensor:
    """-> float32 [n, V] without the bias. Not rounded to 16 bit, because ids are sampled from them."""
    if normalized.dtype == torch.float32:
        return normalized @ head_weight.T
    return torch.mm(normalized, head_weight.T, out_dtype=torch.float32)


def sample_rows(scores: Tensor, bias: Tensor, slots: Tensor, state: SamplerState, sampler: Sampler) -> Tensor:
    """int32 [n]: head rows, or a code of ``sequence.py``; meaningless for rows in the filler slot."""
    log_probs, not_finite = state.masked_log_probs(scores + bias, slots)
    return state.record(slots, sampler.choose(log_probs, state, slots), not_finite).int()


def begin_turns(numbers: Tensor, blocks: Tensor, table: Tensor, state: SamplerState) -> None:
    """numbers int64 [turns, NUM_START_NUMBERS], blocks int32 [turns, blocks of the longest sequence]: see ``write_starts``.

    Turns in the filler slot are padding.
    """
    filler = len(table) - 1
    slots = numbers[:, 0]
    state.running[slots] = slots != filler
    state.num_new[slots] = 0
    state.max_new[slots], state.min_new[slots], state.record_on_length[slots] = numbers[:, 2], numbers[:, 3], numbers[:, 4]
    special = torch.arange(state.forbidden.shape[1], device=numbers.device)
    state.forbidden[slots] = (numbers[:, 5:6] >> special & 1) > 0
    state.forbidden_early[slots] = (numbers[:, 6:7] >> special & 1) > 0
    fresh = torch.where(numbers[:, 1] > 0, slots, filler)  # the fields below are set for new sequences only
    table[fresh] = torch.where(fresh[:, None] == filler, table[filler], blocks)
    state.top_k[fresh], state.win_size[fresh], state.min_repeats[fresh] = numbers[:, 7], numbers[:, 8], numbers[:, 9]
    state.key[fresh] = numbers[:, 10]
    state.top_p[fresh] = numbers[:, 11].int().view(torch.float32)
    state.temperature[fresh] = numbers[:, 12].int().view(torch.float32)
    state.num_decided[fresh] = 0


def _normalize(residual: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """RMSNorm without its weights, which are folded into the following projection."""
    return (residual * torch.rsqrt(residual.square().mean(dim=-1, keepdim=True) + eps)).to(dtype)


def _rotate(heads: Tensor, rows: RowTensors) -> Tensor:
    """heads [n, h, 1, head_size] -> float32; ``sin`` carries the sign of the swapped halves."""
    swapped = heads.view(*heads.shape[:-1], 2, -1).flip(-2).flatten(-2)
    return heads.float() * rows.cos + swapped.float() * rows.sin


def _keys_and_values(heads: Tensor, rows: RowTensors, num_kv_heads: int) -> Tensor:
    """heads [n, 2 * kv_heads, 1, head_size], keys first -> [2, n, kv_heads, head_size] as they are stored.

    NaN and infinite values are replaced by finite numbers, because other sequences multiply masked values by zero. Keys stay unchanged,
    so the sequence itself is still detected as not finite.
    """
    is_key = torch.arange(heads.shape[1], device=heads.device)[:, None, None] < num_kv_heads
    stored = torch.where(is_key, _rotate(heads, rows).to(heads.dtype), heads.nan_to_num())
    return stored.view(len(heads), 2, num_kv_heads, -1).transpose(0, 1)


def _gated(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.float().chunk(2, dim=-1)
    hidden = functional.silu(gate) * up
    if gate_up.dtype == torch.float16:
        largest = torch.finfo(torch.float16).max
        hidden = hidden.clamp(-largest, largest)
    return hidden.to(gate_up.dtype)
