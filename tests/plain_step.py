"""The recorded step of the language model in plain PyTorch: what its kernels compute, as their reference, and in their place on a CPU.

The residual stream is float32. The largest float16 is 65504: residual, norms, scores and rotation are computed in
float32; normalised inputs are at most the square root of the hidden size; the product of gate and up is clamped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from bistream.checkpoints.config import LanguageModelConfig
from bistream.text2token.graphs.batch import RowField
from bistream.text2token.graphs.step import GraphStep, sample_rows
from bistream.text2token.graphs.text_reading import NOTHING, NOWHERE, TextReading
from bistream.text2token.graphs.tuning import Tuning
from bistream.text2token.graphs.weights import GROUP, GraphWeights, LayerTensors
from bistream.text2token.kv_cache import PagedCache
from bistream.text2token.sampler import RepetitionAwareSampler, SamplerState


class PlainKernels:
    """In place of ``StepKernels``, for a step without a GPU."""

    def __init__(self, step: GraphStep, max_rows: int, tuning: Tuning) -> None:
        self._step = step
        self._scores = torch.zeros(0)
        if isinstance(step.sampler, RepetitionAwareSampler):
            step.state.top_k_in_use = step.config.num_scores  # the kernel that samples has no bound either

    def scores(self, fields: Tensor) -> Tensor:
        step = self._step
        self._scores = scores_of_rows(fields, step.weights, step.config, step.state, step.cache, step.table, step.reading)
        return self._scores

    def sample(self, fields: Tensor) -> Tensor:
        return sample_rows(self._scores, fields, self._step.state, self._step.sampler)

    def begin_turns(self, numbers: Tensor, blocks: Tensor) -> None:
        begin_turns(numbers, blocks, self._step.table, self._step.state)

    def compile_ahead(self, launch: Callable[[], object], facts: Mapping[str, str]) -> None:
        """Nothing is compiled."""


class Rows(NamedTuple):
    """The rows of a step."""

    places: Tensor  # int64 [n, positions up to the furthest]: where in the cache each position of the row's sequence is
    positions: Tensor  # int64 [n]
    cos: Tensor  # float32 [n, 1, head_size / 2]
    sin: Tensor

    @property
    def here(self) -> Tensor:
        """int64 [n]: where in the cache the rows themselves are."""
        return self.places.gather(1, self.positions[:, None])[:, 0]


def read_rows(fields: Tensor, table: Tensor, weights: GraphWeights, block_size: int) -> Rows:
    """fields: int32 [n, NUM_FIELDS]; table: int32 [slots, blocks of the longest sequence].

    Padding rows are at position 0 of the last slot.
    """
    positions = fields[:, RowField.POSITION].clamp(min=0).long()
    seen = torch.arange(int(positions.max()) + 1, device=fields.device)
    places = table[fields[:, RowField.SLOT].long()][:, seen // block_size].long() * block_size + seen % block_size
    return Rows(places, positions, weights.cos[positions][:, None], weights.sin[positions][:, None])


def scores_of_rows(
    fields: Tensor,
    weights: GraphWeights,
    config: LanguageModelConfig,
    state: SamplerState,
    cache: PagedCache,
    table: Tensor,
    reading: TextReading | None = None,
) -> Tensor:
    """float32 [n, rows of the head, padding included]. Keys and values go to the cache; what ``reading`` is for, to it."""
    slots, given = fields[:, RowField.SLOT].long(), fields[:, RowField.TOKEN]
    residual = weights.embedding[torch.where(given < 0, state.last_id[slots], given)].float()
    rows = read_rows(fields, table, weights, cache.block_size)
    if reading is not None:
        note(reading, given, rows.here)
    for number, tensors in enumerate(weights.layers):
        residual = _run_layer(residual, tensors, cache, number, rows, config, reading)
    # not rounded to 16 bit, because ids are sampled from them
    return _normalize(residual, config, weights.head_weight.dtype).float() @ weights.head_weight.T.float() + weights.head_bias


def _run_layer(
    residual: Tensor,
    tensors: LayerTensors,
    cache: PagedCache,
    number: int,
    rows: Rows,
    config: LanguageModelConfig,
    reading: TextReading | None,
) -> Tensor:
    """Keys and values are written before they are read, so rows of one sequence see each other."""
    dtype = tensors.output_weight.dtype
    fused = functional.linear(_normalize(residual, config, dtype), tensors.qkv_weight)
    first, second = apart(fused.view(len(fused), -1, config.head_size))
    biased = torch.cat((first, second), dim=-1).float() + tensors.qkv_bias.view(-1, config.head_size)
    query, key, value = torch.split(biased, [config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads], dim=1)
    # Other sequences multiply masked values by zero, so NaN and infinity are replaced; keys keep them, so that their sequence is detected.
    cache.write(number, rows.here, _rotate(key, rows).to(dtype), value.to(dtype).nan_to_num())
    turned = _rotate(query, rows).to(dtype)
    if reading is not None and reading.layer == number:
        read(reading, turned, cache.layer(number)[0].flatten(0, 1), rows.places, rows.positions)
    attended = attend(turned, cache, number, rows)
    residual = residual + functional.linear(attended, tensors.output_weight)
    gate, up = apart(functional.linear(_normalize(residual, config, dtype), tensors.gate_up_weight).float())
    hidden = functional.silu(gate) * up
    if dtype == torch.float16:
        hidden = hidden.clamp(-65504.0, 65504.0)
    return residual + functional.linear(hidden.to(dtype), tensors.down_weight)


def note(reading: TextReading, given: Tensor, places: Tensor) -> None:
    """The rows' ids, below 0 for sampled ones, and their places in the cache; int64 [n]."""
    reading.is_text[places] = ((given >= 0) & (given < reading.num_text_ids)).to(torch.uint8)


def read(reading: TextReading, query: Tensor, keys: Tensor, places: Tensor, positions: Tensor) -> None:
    """query [n, heads, head_size] and keys [positions of the cache, kv_heads, head_size] of the head's layer; places int64
    [n, positions up to the furthest]; positions int64 [n]."""
    own = keys[places, reading.head * keys.shape[1] // query.shape[1]]
    scores = (own.float() @ query[:, reading.head, :, None].float())[..., 0]
    is_seen = (reading.is_text[places] > 0) & (torch.arange(places.shape[1], device=places.device) <= positions[:, None])
    best = scores.masked_fill(~is_seen, -torch.inf).argmax(1)
    reading.found[: len(best)] = torch.where(is_seen.any(1), NOWHERE - best, NOTHING)


def apart(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The reverse of ``alternate`` on the last dimension: [..., 2 * features] -> two of [..., features]."""
    first, second = rows.reshape(*rows.shape[:-1], -1, 2, GROUP).unbind(-2)
    return first.flatten(-2), second.flatten(-2)


def attend(query: Tensor, cache: PagedCache, number: int, rows: Rows) -> Tensor:
    """query [n, heads, head_size] -> [n, heads * head_size]: a row sees its sequence up to its own position."""
    keys, values = (part.flatten(0, 1)[rows.places].transpose(1, 2) for part in cache.layer(number))  # [n, kv_heads, positions, head_size]
    grouped = query.view(len(query), keys.shape[1], -1, query.shape[-1])
    hidden = torch.arange(keys.shape[2], device=query.device) > rows.positions[:, None]
    scores = (grouped @ keys.transpose(2, 3)).float() * query.shape[-1] ** -0.5
    weights = torch.softmax(scores.masked_fill(hidden[:, None, None], -torch.inf), dim=-1)
    return (weights.to(values.dtype) @ values).flatten(1)


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


def _normalize(residual: Tensor, config: LanguageModelConfig, dtype: torch.dtype) -> Tensor:
    """RMSNorm without its weights, which are folded into the following projection."""
    return (residual * torch.rsqrt(residual.square().mean(dim=-1, keepdim=True) + config.rms_norm_eps)).to(dtype)


def _rotate(heads: Tensor, rows: Rows) -> Tensor:
    """heads float32 [n, h, head_size]. The first half of a head is rotated against the second."""
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * rows.cos - second * rows.sin, second * rows.cos + first * rows.sin), dim=-1)
