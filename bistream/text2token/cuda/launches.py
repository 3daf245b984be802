"""One step of the language model on CUDA: the kernel launches for one bucket of rows, captured into a graph by the runner.

In: rows that the host wrote to the ring (``StepBuffers.ring``). Out: chosen head rows in ``StepBuffers.results``, keys and
values in the cache, the sampler's state. Every kernel but the first uses programmatic dependent launch: kernels write only
after their wait; before it they read only weights and data written by the first kernel of the step or by earlier steps.

Activations that a kernel for few rows reads next are stored in its layout ("packed").
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from bistream.checkpoints.config import LanguageModelConfig
from bistream.gpu.tensor_tiles import tile_descriptor
from bistream.text2token.cuda import (
    kernels_attention,
    kernels_down,
    kernels_embedding,
    kernels_gate_up,
    kernels_head,
    kernels_output,
    kernels_qkv,
    kernels_sampler,
)
from bistream.text2token.cuda.batch import RowField
from bistream.text2token.cuda.memory import CudaCache, StepBuffers
from bistream.text2token.cuda.tuning import MEASURED_BEST, Tuning
from bistream.text2token.cuda.weights import PackedLayer, PackedWeights
from bistream.text2token.sampler import SamplerState
from bistream.text2token.sizes import CHUNK, HEAD_SIZE, NUM_CHUNKS

TILE_ROWS = 16  # rows of the matrix instruction of the kernels for few rows
GROUP_ROWS = 64  # rows per group of the kernels for many rows
GROUP_COLUMNS = 64  # columns per bulk copy of the kernels for many rows
GATE_UP_FEATURES = 80  # features per program of gate_up_many: 64 + 16
PREFERRED_SHARED_MEMORY_CARVEOUT = 9  # CU_FUNC_ATTRIBUTE_...
SAMPLER_WARPS = 16
_ATTENTION_FIELDS = (RowField.SLOT, RowField.POSITION, RowField.START, RowField.ORDER)  # in the order of attend_rows


class CudaStep:
    def __init__(
        self,
        config: LanguageModelConfig,
        weights: PackedWeights,
        cache: CudaCache,
        state: SamplerState,
        buffers: StepBuffers,
        tuning: Tuning = MEASURED_BEST,
    ) -> None:
        self.config = config
        self.weights = weights
        self.cache = cache
        self.state = state
        self.buffers = buffers
        self.tuning = tuning
        self._heads: dict[str, Any] = {"HEADS": config.num_attention_heads, "KV_HEADS": config.num_key_value_heads}
        self._norm: dict[str, Any] = {"K": config.hidden_size, "EPS": config.rms_norm_eps}
        self._stages = min(tuning.stages, config.hidden_size // GROUP_COLUMNS)

    def launch(self, rows: int) -> None:
        """Queue a step of ``rows`` rows (a bucket) on the current stream."""
        self._begin(rows)
        for index, layer in enumerate(self.weights.layers):
            self._qkv(index, layer, rows)
            self._attend(index, rows)
            self._output(index, layer, rows)
            self._gate_up(index, layer, rows)
            self._down(index, layer, rows)
        self._head(rows)
        self._sample(rows)

    def _run(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        *arguments: Any,
        warps: int,
        registers: int | None = None,
        first: bool = False,
        **sizes: Any,
    ) -> None:
        compiled = kernel[grid](
            *arguments,
            **sizes,
            num_warps=warps,
            num_stages=1,  # kernels specify their own pipelining
            maxnreg=registers,
            enable_fp_fusion=False,
            launch_pdl=self.tuning.dependent_launch and not first,
        )
        if compiled is not None:  # the launch was not left out (gpu/compile_ahead.py)
            prefer_shared_memory(compiled.function, 100 if self.tuning.shared_memory_first else -1)

    def _next_bytes(self, matrix: Tensor, rows: int) -> int:
        return matrix.nbytes if rows >= self.tuning.next_weights_rows else 0

    def _begin(self, rows: int) -> None:
        buffers, hidden = self.buffers, self.config.hidden_size
        arguments = (buffers.ring, buffers.clock, self.state.last_id, self.weights.embedding)
        norms = len(buffers.squares)
        self._run(
            kernels_embedding.begin_rows, (rows,), *arguments, buffers.rows, buffers.x, buffers.xb, buffers.squares, buffers.arrived,
            ARRIVED=buffers.arrived.numel(), MAX_ROWS=buffers.max_rows, HIDDEN=hidden, WIDTH=_power(hidden),
            NORMS=norms, NORMS_WIDTH=_power(norms), PACKED=rows <= self.tuning.qkv_small_rows, warps=4, first=True,
        )  # fmt: skip

    def _qkv(self, index: int, layer: PackedLayer, rows: int) -> None:
        buffers, weights, config = self.buffers, self.weights, self.config
        squares = buffers.squares[2 * index]
        slots, positions = buffers.rows[RowField.SLOT], buffers.rows[RowField.POSITION]
        tables = (weights.cos, weights.sin, slots, positions, buffers.table, buffers.table.stride(0))
        results = (buffers.query, self.cache.blocks[index], rows)
        sizes: dict[str, Any] = {**self._norm, **self._heads, "FIRST": index == 0}
        if rows <= self.tuning.qkv_small_rows:
            heads = config.num_attention_heads + 2 * config.num_key_value_heads
            self._run(
                kernels_qkv.qkv_small, (heads * 4, _tiles(rows, TILE_ROWS)),
                buffers.xb, squares, layer.qkv.tiles, layer.qkv_bias, *tables, *results, HALVES=_halves(rows), **sizes, warps=8,
            )  # fmt: skip
            return
        tiles = 2 * (config.num_attention_heads + config.num_key_value_heads) + 8 * config.num_key_value_heads
        self._run(
            kernels_qkv.qkv_many, (tiles, _tiles(rows, GROUP_ROWS)),
            tile_descriptor(buffers.xb, GROUP_ROWS), tile_descriptor(layer.qkv.rows, 32), squares, layer.qkv_bias, *tables, *results,
            X_STAGES=self._stages, **sizes, warps=4, registers=128,
        )  # fmt: skip

    def _attend(self, index: int, rows: int) -> None:
        buffers, tuning, config = self.buffers, self.tuning, self.config
        few = tuning.attention if rows <= TILE_ROWS else tuning.attention_64
        stages, in_flight = few if rows <= GROUP_ROWS else tuning.attention_many
        self._run(
            kernels_attention.attend_rows, (config.num_key_value_heads, rows),
            buffers.query, self.cache.blocks[index], *(buffers.rows[field] for field in _ATTENTION_FIELDS),
            buffers.table, buffers.table.stride(0), buffers.attended, rows,
            **self._heads, SHARE=config.num_attention_heads // config.num_key_value_heads, SCALE=math.log2(math.e) / HEAD_SIZE**0.5,
            STAGES=stages, IN_FLIGHT=in_flight, LATE=tuning.attention_late, PACKED=rows <= tuning.output_small_rows, warps=4,
        )  # fmt: skip

    def _output(self, index: int, layer: PackedLayer, rows: int) -> None:
        buffers, tuning, hidden = self.buffers, self.tuning, self.config.hidden_size
        results = (buffers.x, buffers.xb, buffers.squares[2 * index + 1], rows)
        packed = rows <= tuning.gate_up_small_rows
        if rows <= tuning.output_small_rows:
            tiles = 1 if rows <= TILE_ROWS else tuning.output_tiles
            self._run(
                kernels_output.output_small, (hidden // 8 // tiles, _tiles(rows, TILE_ROWS)),
                buffers.attended, layer.output.tiles, *results, K=hidden, HALVES=_halves(rows), TILES=tiles, PACKED=packed, warps=8,
            )  # fmt: skip
            return
        self._run(
            kernels_output.output_many, (hidden // 32, _tiles(rows, GROUP_ROWS)),
            tile_descriptor(buffers.attended, GROUP_ROWS), tile_descriptor(layer.output.rows, 32), *results,
            X_STAGES=self._stages, K=hidden, warps=4, registers=128,
        )  # fmt: skip

    def _gate_up(self, index: int, layer: PackedLayer, rows: int) -> None:
        buffers, tuning, inner = self.buffers, self.tuning, self.config.intermediate_size
        squares = buffers.squares[2 * index + 1]
        if rows <= tuning.gate_up_small_rows:
            self._run(
                kernels_gate_up.gate_up_small, (_tiles(inner // 8, tuning.gate_up_pairs),),
                buffers.xb, squares, layer.gate_up.tiles, buffers.hidden, rows,
                **self._norm, INTERMEDIATE=inner, PAIRS=tuning.gate_up_pairs, HALVES=_halves(rows), MANY=rows > TILE_ROWS,
                PACKED=rows <= TILE_ROWS, IN_FLIGHT=tuning.weights_in_flight, warps=8,
            )  # fmt: skip
            return
        weights = layer.gate_up.rows
        if rows <= tuning.gate_up_large_rows:
            tile, features, warps, stages = tuning.gate_up_tile
            self._run(
                kernels_gate_up.gate_up_large, (inner // features, _tiles(rows, tile)),
                _describe(buffers.xb, tile), squares, _describe(weights, 2 * features), weights, buffers.hidden, rows,
                **self._norm, INTERMEDIATE=inner, TILE=tile, FEATURES=features, STAGES=stages, THREADS=warps * 32, warps=warps,
            )  # fmt: skip
            return
        groups = _groups(rows)
        self._run(
            kernels_gate_up.gate_up_many, (_tiles(inner, GATE_UP_FEATURES), _tiles(rows, GROUP_ROWS * groups)),
            tile_descriptor(buffers.xb, GROUP_ROWS), tile_descriptor(weights, 128), tile_descriptor(weights, 32), squares, buffers.hidden,
            layer.down.rows, rows, NEXT_BYTES=self._next_bytes(layer.down.rows, rows), **self._norm, INTERMEDIATE=inner, GROUPS=groups,
            STAGES=self._stages, REGISTERS=tuning.gate_up_registers, warps=4,
        )  # fmt: skip

    def _down(self, index: int, layer: PackedLayer, rows: int) -> None:
        buffers, tuning, hidden, inner = self.buffers, self.tuning, self.config.hidden_size, self.config.intermediate_size
        squares = buffers.squares[2 * index + 2]
        if rows <= TILE_ROWS:
            self._run(
                kernels_down.down_small, (hidden // 8,), buffers.hidden, layer.down.tiles, buffers.x, buffers.xb, squares, rows,
                HIDDEN=hidden, K=inner, HALVES=_halves(rows), registers=tuning.down_registers if rows <= 8 else 255, warps=8,
            )  # fmt: skip
            return
        is_last = index + 1 == len(self.weights.layers)
        following = self.weights.head.rows if is_last else self.weights.layers[index + 1].qkv.rows
        groups, features = _groups(rows), 64 if rows <= GROUP_ROWS else 128
        self._run(
            kernels_down.down_many, (hidden // features, _tiles(rows, GROUP_ROWS * groups), NUM_CHUNKS),
            tile_descriptor(buffers.hidden, GROUP_ROWS), tile_descriptor(layer.down.rows, features),
            buffers.down_part, buffers.arrived[index], buffers.x, buffers.xb, squares, following, rows,
            NEXT_BYTES=self._next_bytes(following, rows), GROUPS=groups, X_STAGES=tuning.down_stages,
            MAX_ROWS=buffers.max_rows, HIDDEN=hidden,
            PACKED=rows <= tuning.qkv_small_rows and not is_last,  # the head reads rows as they are
            PATIENCE=tuning.down_patience, REGISTERS=152, registers=tuning.down_registers_32 if rows <= 32 else None, warps=4,
        )  # fmt: skip

    def _head(self, rows: int) -> None:
        buffers, tuning, head = self.buffers, self.tuning, self.weights.head
        vocab = self.config.num_scores
        sizes: dict[str, Any] = {**self._norm, "VOCAB": vocab, "VOCAB_STRIDE": buffers.logits_stride}
        results = (self.weights.head_bias, buffers.logits, rows)
        if rows <= TILE_ROWS:
            self._run(
                kernels_head.head_small, (_tiles(vocab, 8 * tuning.head_tiles),), buffers.xb, buffers.squares[-1], head.tiles, *results,
                **sizes, TILES=tuning.head_tiles, HALVES=_halves(rows), IN_FLIGHT=tuning.weights_in_flight, warps=8,
            )  # fmt: skip
            return
        tile, features, warps, stages = tuning.head_tile_64 if rows <= 64 else tuning.head_tile
        self._run(
            kernels_head.head_large, (_tiles(vocab, features), _tiles(rows, tile)),
            _describe(buffers.xb, tile), buffers.squares[-1], _describe(head.rows, features), *results,
            **sizes, TILE=tile, FEATURES=features, STAGES=stages, warps=warps,
        )  # fmt: skip

    def _sample(self, rows: int) -> None:
        buffers, config, state = self.buffers, self.config, self.state
        vocab = config.num_scores
        self._run(
            kernels_sampler.sample_rows, (rows,), buffers.logits, buffers.rows, buffers.clock, buffers.results,
            state.top_p, state.top_k, state.temperature, state.win_size, state.min_repeats, state.key, state.history,
            state.num_decided, state.last_id, state.running.view(torch.uint8), state.num_new, state.max_new, state.min_new,
            state.forbidden.view(torch.uint8), state.forbidden_early.view(torch.uint8), state.record_on_length,
            state.space.speech_offset,
            DEPTH=buffers.depth, MAX_ROWS=buffers.max_rows, VOCAB=vocab, VOCAB_STRIDE=buffers.logits_stride,
            SIZE=max(128, _power(vocab) // SAMPLER_WARPS), SPEECH=config.speech_token_size, HISTORY=state.history_size,
            warps=SAMPLER_WARPS, registers=self.tuning.sampler_registers if rows > 2 * GROUP_ROWS else None,
        )  # fmt: skip


_carveouts: dict[int, int] = {}


def prefer_shared_memory(function: int, percent: int) -> None:
    """Set the shared-memory carveout, in percent, of a loaded kernel (CUfunction); -1 is the driver's choice.

    Kernels with different carveouts cannot share a multiprocessor, so none could start before its predecessor has left.
    """
    if _carveouts.get(function) != percent:
        library = ctypes.CDLL("libcuda.so.1")
        error = library.cuFuncSetAttribute(ctypes.c_void_p(function), PREFERRED_SHARED_MEMORY_CARVEOUT, percent)
        assert error == 0, f"cuFuncSetAttribute returned {error}"
        _carveouts[function] = percent


def _describe(matrix: Tensor, rows: int) -> TensorDescriptor:
    """Tiles [rows, CHUNK] of a matrix, for bulk copies."""
    return TensorDescriptor.from_tensor(matrix, [rows, CHUNK])


def _groups(rows: int) -> int:
    """Groups of 64 rows per program of ``gate_up_many`` and ``down_many``, so that all programs fit on the device at once."""
    return 1 if rows <= 2 * GROUP_ROWS else 2


def _halves(rows: int) -> int:
    """Used halves of the 16 rows of the matrix instruction."""
    return 1 if rows <= 8 else 2


def _power(value: int) -> int:
    """The smallest power of two not below value."""
    return 1 << (value - 1).bit_length()


def _tiles(count: int, size: int) -> int:
    return -(-count // size)
