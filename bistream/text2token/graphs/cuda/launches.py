"""The kernels of a step for one number of rows, as a graph records them, and the memory that they pass on to one another.

Every kernel but the first may start while its predecessor runs (programmatic dependent launch): before its wait it reads only weights and
what was written before the step's first kernel began; it writes after the wait alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from bistream.checkpoints.config import LanguageModelConfig
from bistream.gpu.compile_ahead import compile_ahead
from bistream.text2token.graphs.cuda import (
    kernels_attention,
    kernels_gate_up,
    kernels_head,
    kernels_qkv,
    kernels_residual,
    kernels_rows,
    kernels_sampler,
    kernels_text_reading,
    kernels_turns,
    pieces_linear,
)
from bistream.text2token.graphs.text_reading import TextReading
from bistream.text2token.graphs.tuning import CHUNK_UNIT, Gpu, Tiles, Tuning, tile_for
from bistream.text2token.graphs.weights import GraphWeights, LayerTensors
from bistream.text2token.kv_cache import PagedCache
from bistream.text2token.sampler import SamplerState

ROW_TILE = 128  # the largest tile of rows; buffers have a multiple of it
ATTENTION_SPLIT = 64  # positions of a warp's split; it decides results
SHRINK_FLOAT16 = 1 / 16  # of the residual stream's 16-bit copy: float16 ends at 65504


def chunk_columns(columns: int) -> int:
    """Columns of K whose products one sum holds: of so many sums at most. It decides results, so it depends on nothing else."""
    return -(-columns // (pieces_linear.CHUNK_COUNT * CHUNK_UNIT)) * CHUNK_UNIT


class StepBuffers:
    """What the kernels of a step pass on to one another."""

    def __init__(self, config: LanguageModelConfig, weights: GraphWeights, max_rows: int, positions: int, split_rows: int) -> None:
        """positions: of the longest sequence. split_rows: most rows of a step whose attention is split over programs."""
        device, dtype = weights.embedding.device, weights.embedding.dtype
        rows, hidden = -(-max_rows // ROW_TILE) * ROW_TILE, config.hidden_size

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.max_rows = rows
        self.x = zeros(rows, hidden)  # residual stream
        self.xb = zeros(rows, hidden, dtype=dtype)  # its copy for the next projection
        self.squares = zeros(2 * config.num_hidden_layers + 1, rows, dtype=torch.int64)  # sums of squares for every norm
        self.query = zeros(rows, hidden, dtype=dtype)
        self.attended = zeros(rows, hidden, dtype=dtype)
        self.hidden = zeros(rows, config.intermediate_size, dtype=dtype)
        self.parts = zeros(pieces_linear.CHUNK_COUNT, rows, hidden)  # sums of the down projection's chunks
        self.most_parts = _tiles(positions, kernels_attention.WARP_COUNT * ATTENTION_SPLIT)  # of a row
        width = self.most_parts * kernels_attention.WARP_COUNT * config.num_attention_heads * (config.head_size + 4)
        self.attention_parts = zeros(min(rows, split_rows), width)
        self.arrived = zeros(rows, config.num_key_value_heads, dtype=torch.int32)  # programs that have finished their parts
        self.scores = zeros(rows, len(weights.head_bias))
        self.chosen = zeros(rows, dtype=torch.int32)
        self.scratch = zeros(rows, kernels_sampler.SCRATCH_NUMBERS, dtype=torch.int64)


class StepKernels:
    """Of one step, for any number of rows; ``tests/plain_step.py`` has their plain form."""

    def __init__(
        self, config: LanguageModelConfig, weights: GraphWeights, cache: PagedCache, table: Tensor, state: SamplerState, max_rows: int,
        tuning: Tuning, reading: TextReading | None = None,
    ) -> None:  # fmt: skip
        assert cache.block_size % ATTENTION_SPLIT == 0, "a split lies within a block"
        self.config, self.weights, self.cache, self.table, self.state, self.tuning = config, weights, cache, table, state, tuning
        self.reading = reading
        self.buffers = StepBuffers(config, weights, max_rows, table.shape[1] * cache.block_size, tuning.attention_split_rows)
        self._gpu = Gpu.of(weights.embedding.device)
        self._shrink = SHRINK_FLOAT16 if weights.embedding.dtype == torch.float16 else 1.0
        self._rows = 1  # of the step that is being launched
        self._norm: dict[str, Any] = {"EPS": config.rms_norm_eps, "SHRINK": self._shrink}
        self._heads: dict[str, Any] = {
            "HEADS": config.num_attention_heads, "KV_HEADS": config.num_key_value_heads, "HEAD": config.head_size,
            "BLOCK": cache.block_size,
        }  # fmt: skip

    def compile_ahead(self, launch: Callable[[], object], facts: Mapping[str, str]) -> None:
        """See ``gpu.compile_ahead``."""
        compile_ahead("language model", launch, facts)

    def scores(self, fields: Tensor) -> Tensor:
        """fields: int32 [n, NUM_FIELDS]. Keys and values go to the cache. Returns float32 [n, rows of the head, padding included]."""
        rows = self._rows = len(fields)
        self.begin(fields)
        for index, tensors in enumerate(self.weights.layers):
            self.qkv(index, tensors, fields)
            self.attend(index, fields)
            self.output(index, tensors, rows)
            self.gate_up(index, tensors, rows)
            self.down(index, tensors, rows)
        return self.head(rows)

    def begin(self, fields: Tensor) -> None:
        buffers, hidden, norms, reading = self.buffers, self.config.hidden_size, len(self.buffers.squares), self.reading
        kernel, further, sizes = kernels_rows.begin_rows, tuple[Any, ...](), dict[str, Any]()
        if reading is not None:
            kernel, sizes = kernels_text_reading.begin_and_note, {"TEXT_IDS": reading.num_text_ids, "BLOCK": self.cache.block_size}
            further = (self.table, self.table.stride(0), reading.is_text, reading.found)
        self._run(
            kernel, (len(fields),), fields, self.state.last_id, self.weights.embedding, buffers.x, buffers.xb, buffers.squares, *further,
            HIDDEN=hidden, WIDTH=_power(hidden), NORMS=norms, NORMS_WIDTH=_power(norms), MAX_ROWS=buffers.max_rows,
            SHRINK=self._shrink, **sizes, warps=4, is_first=True,
        )  # fmt: skip

    def qkv(self, index: int, tensors: LayerTensors, fields: Tensor) -> None:
        buffers, weights, tuning, rows = self.buffers, self.weights, self.tuning, len(fields)
        how = self._how(rows, self.config.hidden_size, rows <= tuning.qkv_few_rows, 16, tuning.qkv)
        how["FEATURES"] = _fitting(how["FEATURES"], self.config.head_size)
        self._run(
            kernels_qkv.qkv, (len(tensors.qkv_weight) // how["FEATURES"], _tiles(rows, how["ROWS"])),
            buffers.xb, buffers.squares[2 * index], tensors.qkv_weight, tensors.qkv_bias, weights.cos, weights.sin, fields,
            self.table, self.table.stride(0), buffers.query, *self.cache.layer(index), rows,
            **how, **self._heads, **self._norm,
        )  # fmt: skip

    def attend(self, index: int, fields: Tensor) -> None:
        config, tuning, buffers, reading = self.config, self.tuning, self.buffers, self.reading
        kernel, kv_heads, further, sizes = kernels_attention.attend_rows, config.num_key_value_heads, tuple[Any, ...](), dict[str, Any]()
        if reading is not None and reading.layer == index:
            kernel, kv_heads = kernels_text_reading.attend_and_read, kv_heads + 1
            further, sizes = (reading.is_text, reading.found), {"QUERY": reading.head}
        programs = tuning.attention_programs if len(fields) <= tuning.attention_split_rows else 1
        programs = min(programs, buffers.most_parts)
        self._run(
            kernel, (kv_heads, len(fields), programs), buffers.query, *self.cache.layer(index), fields, self.table, self.table.stride(0),
            buffers.attention_parts, buffers.arrived, buffers.attended, *further, **self._heads, **sizes,
            SHARE=config.num_attention_heads // config.num_key_value_heads, SPLIT=ATTENTION_SPLIT, PROGRAMS=programs,
            MOST_PARTS=buffers.most_parts, SCALE=math.log2(math.e) / config.head_size**0.5, warps=kernels_attention.WARP_COUNT,
        )  # fmt: skip

    def output(self, index: int, tensors: LayerTensors, rows: int) -> None:
        hidden, tuning = self.config.hidden_size, self.tuning
        how = self._how(rows, hidden, rows <= tuning.output_few_rows, tuning.output_features, tuning.output)
        self._add_product(self.buffers.attended, tensors.output_weight, 2 * index + 1, rows, how)

    def gate_up(self, index: int, tensors: LayerTensors, rows: int) -> None:
        buffers, config, tuning = self.buffers, self.config, self.tuning
        how = self._how(rows, config.hidden_size, rows <= tuning.gate_up_few_rows, tuning.gate_up_features, tuning.gate_up)
        how["FEATURES"] = _fitting(how["FEATURES"], 2 * config.intermediate_size)
        tiles = tuning.gate_up_tiles if how["IS_FEW"] else 1
        self._run(
            kernels_gate_up.gate_up, (_tiles(2 * config.intermediate_size // how["FEATURES"], tiles), _tiles(rows, how["ROWS"])),
            buffers.xb, buffers.squares[2 * index + 1], tensors.gate_up_weight, buffers.hidden, rows,
            **how, **self._norm, INTERMEDIATE=config.intermediate_size, TILES=tiles,
        )  # fmt: skip

    def down(self, index: int, tensors: LayerTensors, rows: int) -> None:
        buffers, config, tuning = self.buffers, self.config, self.tuning
        columns, norm = config.intermediate_size, 2 * index + 2
        how = self._how(rows, columns, rows <= tuning.down_few_rows, tuning.down_features, tuning.down)
        if how["IS_FEW"] or how["CHUNK"] == CHUNK_UNIT:
            self._add_product(buffers.hidden, tensors.down_weight, norm, rows, how)
            return
        del how["IS_FEW"]
        how["FEATURES"] = _fitting(how["FEATURES"], config.hidden_size)
        parts = _tiles(columns, how["CHUNK"])
        sizes: dict[str, Any] = {"HIDDEN": config.hidden_size, "MAX_ROWS": buffers.max_rows}
        self._run(
            kernels_residual.multiply_chunk, (config.hidden_size // how["FEATURES"], _tiles(rows, how["ROWS"]), parts),
            buffers.hidden, tensors.down_weight, buffers.parts, rows, **how, **sizes,
        )  # fmt: skip
        features = _fitting(tuning.add_features, config.hidden_size)
        self._run(
            kernels_residual.add_chunks, (config.hidden_size // features, _tiles(rows, tuning.add_rows)),
            buffers.parts, buffers.x, buffers.xb, buffers.squares[norm], rows, PARTS=parts, ROWS=tuning.add_rows, FEATURES=features,
            SHRINK=self._shrink, **sizes, warps=4,
        )  # fmt: skip

    def head(self, rows: int) -> Tensor:
        buffers, weights, tuning = self.buffers, self.weights, self.tuning
        how = self._how(rows, self.config.hidden_size, rows <= tuning.head_few_rows, tuning.head_features, tuning.head)
        stride = len(weights.head_bias)
        how["FEATURES"] = _fitting(how["FEATURES"], stride)
        self._run(
            kernels_head.head, (stride // how["FEATURES"], _tiles(rows, how["ROWS"])),
            buffers.xb, buffers.squares[-1], weights.head_weight, weights.head_bias, buffers.scores, rows,
            **how, **self._norm, STRIDE=stride,
        )  # fmt: skip
        return buffers.scores[:rows]

    def sample(self, fields: Tensor) -> Tensor:
        """Chosen head rows, or codes of ``sequence.py``, of the rows that sample; int32 [n]."""
        buffers, state, config = self.buffers, self.state, self.config
        self._run(
            kernels_sampler.sample_rows, (len(fields),), buffers.scores, fields, buffers.chosen, buffers.scratch,
            state.top_p, state.top_k, state.temperature, state.win_size, state.min_repeats, state.key, state.history,
            state.num_decided, state.last_id, state.running.view(torch.uint8), state.num_new, state.max_new, state.min_new,
            state.forbidden.view(torch.uint8), state.forbidden_early.view(torch.uint8), state.record_on_length, state.space.speech_offset,
            VOCAB=config.num_scores, STRIDE=buffers.scores.shape[1], SIZE=max(_power(config.num_scores), 2 * kernels_sampler.GROUP_COUNT),
            SPEECH=config.speech_token_size, HISTORY=state.history_size, warps=self.tuning.sampler_warps,
            registers=self.tuning.sampler_registers if len(fields) > 128 else None,
        )  # fmt: skip
        return buffers.chosen[: len(fields)]

    def begin_turns(self, numbers: Tensor, blocks: Tensor) -> None:
        """numbers int64 [turns, NUM_START_NUMBERS], blocks int32 [turns, blocks of the longest sequence]: see ``write_starts``."""
        state = self.state
        kernels_turns.begin_turns[(len(numbers),)](
            numbers, blocks, self.table, self.table.stride(0),
            state.top_p, state.top_k, state.temperature, state.win_size, state.min_repeats, state.key, state.num_decided,
            state.running.view(torch.uint8), state.num_new, state.max_new, state.min_new,
            state.forbidden.view(torch.uint8), state.forbidden_early.view(torch.uint8), state.record_on_length,
            SPECIALS=len(state.space.specials), FILLER=len(self.table) - 1, num_warps=1,
        )  # fmt: skip

    def _how(self, rows: int, columns: int, is_few: bool, few_features: int, tiles: Tiles) -> dict[str, Any]:
        """Options of a product over ``columns`` columns."""
        chunk = chunk_columns(columns)
        common: dict[str, Any] = {"K": columns, "CHUNK": chunk, "IS_FEW": is_few}
        if is_few:
            return common | {
                "ROWS": pieces_linear.FEW_COUNT,
                "FEATURES": few_features,
                "STEP": chunk,
                "STAGES": 1,
                "warps": pieces_linear.CHUNK_COUNT,
            }
        tile = tile_for(tiles, rows, self._gpu)
        return common | {"ROWS": tile.rows, "FEATURES": tile.features, "STEP": tile.step, "STAGES": tile.stages, "warps": tile.warps}

    def _add_product(self, source: Tensor, weight: Tensor, norm: int, rows: int, how: dict[str, Any]) -> None:
        buffers, hidden = self.buffers, self.config.hidden_size
        how["FEATURES"] = _fitting(how["FEATURES"], hidden)
        self._run(
            kernels_residual.add_product, (hidden // how["FEATURES"], _tiles(rows, how["ROWS"])),
            source, weight, buffers.x, buffers.xb, buffers.squares[norm], rows, **how, HIDDEN=hidden, SHRINK=self._shrink,
        )  # fmt: skip

    def _run(
        self, kernel: Any, grid: tuple[int, ...], *arguments: Any, warps: int, registers: int | None = None, is_first: bool = False,
        **sizes: Any,
    ) -> None:  # fmt: skip
        is_dependent = self._gpu.has_dependent_launch and not is_first and self._rows <= self.tuning.dependent_rows
        pdl = {} if is_first else {"PDL": is_dependent}
        kernel[grid](
            *arguments,
            **sizes,
            **pdl,
            num_warps=warps,
            num_stages=1,  # loops specify their own pipelining
            maxnreg=registers,
            enable_fp_fusion=False,
            launch_pdl=is_dependent,
        )


def _fitting(size: int, whole: int) -> int:
    """The largest power of two up to ``size`` that divides ``whole``."""
    return math.gcd(size, whole)


def _power(value: int) -> int:
    """The smallest power of two not below value."""
    return 1 << (value - 1).bit_length()


def _tiles(count: int, size: int) -> int:
    return -(-count // size)
