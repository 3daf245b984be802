"""One evaluation of the estimator for many rows: both guidance halves in parallel, one kernel between attentions.

The halves share nothing before the end of an evaluation. Each is queued on its own stream (in a recorded graph: its own
branch), so that one half's attention overlaps the other's linear layers and convolutions, which have too few programs
for all multiprocessors. Rows, state and results as in ``launches_few``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from bistream.checkpoints.config import EstimatorConfig
from bistream.gpu.tensor_tiles import tile_descriptor
from bistream.token2mel.cuda import kernels_attention_many, kernels_block_many, kernels_convolution_many
from bistream.token2mel.cuda.batch import BatchArrays, Bucket, max_tiles
from bistream.token2mel.cuda.memory import FlowBuffers
from bistream.token2mel.cuda.tuning import Tuning
from bistream.token2mel.estimator import Estimator, TransformerBlock, Unit, conv_inputs
from bistream.token2mel.layers import WindowLinear
from bistream.token2mel.pages import GUIDANCE_ROWS, FlowPages

_EPS = 1e-5
_ROWS = 64  # of one program of the block kernel
_QUERY_PARTS = (4, 2, 1)  # programs that may share a tile's heads where only the query is computed


class ManyEstimator:
    """Launches for one bucket. arrays: the batch on the device, see ``batch_filling.fill``."""

    def __init__(
        self,
        config: EstimatorConfig,
        network: Estimator,
        pages: FlowPages,
        buffers: FlowBuffers,
        arrays: BatchArrays[Tensor],
        bucket: Bucket,
        tuning: Tuning,
        left_context_chunks: int,
    ) -> None:
        units = [_UnitWeights(unit) for unit in network.units if isinstance(unit, Unit)]
        tiles = max_tiles(len(arrays.frames.index), tuning.attention[0], bucket.sessions)
        batch = _Batch(config, network, pages, arrays, tuning, units, tiles)
        self._halves = [_Half(batch, buffers, half, left_context_chunks) for half in range(GUIDANCE_ROWS)]
        self._device = buffers.x.device

    def launch(self, step: int, time_biases: Tensor, halves: int = GUIDANCE_ROWS) -> None:
        """time_biases: [units, width] of this solver step. halves: 1 leaves out the unconditioned one.

        In: ``buffers.inputs``. Out: ``buffers.raw``.
        """
        current = torch.cuda.current_stream(self._device)
        streams = _streams(self._device)[:halves]
        for rest, _ in streams:  # fork all of them before joining any
            rest.wait_stream(current)
        for half, (rest, attention) in zip(self._halves[:halves], streams, strict=True):
            with torch.cuda.stream(rest):
                half.launch(step, time_biases, attention, is_alone=halves == 1)
        for rest, _ in streams:
            current.wait_stream(rest)


@cache
def _streams(device: torch.device) -> list[tuple[torch.cuda.Stream, torch.cuda.Stream]]:
    """Of each half: one for everything but attention, with higher priority, and one for attention.

    The former runs few, long programs; at equal priority they would queue after all of the other half's attention.
    """
    return [
        (torch.cuda.Stream(device, priority=-1), torch.cuda.Stream(device, priority=0))  # type: ignore[no-untyped-call]
        for _ in range(GUIDANCE_ROWS)
    ]


class _BlockWeights:
    """A transformer block's matrices as descriptors of the tiles that the copy engine fetches."""

    def __init__(self, block: TransformerBlock) -> None:
        inner = block.to_query.weight.shape[0]
        keys_values = block.to_keys_values.weight
        self.module = block
        self.query = tile_descriptor(block.to_query.weight, 64, 256)
        self.key = tile_descriptor(keys_values[:inner], 64, 256)
        self.value = tile_descriptor(keys_values[inner:], 64, 256)
        self.output = tile_descriptor(block.to_out.weight, 256, 64)
        self.linear_in = tile_descriptor(block.linear_in.weight, 64, 256)
        self.linear_out = tile_descriptor(block.linear_out.weight, 256, 64)


class _UnitWeights:
    def __init__(self, unit: Unit) -> None:
        self.residual = unit.residual
        self.blocks = [_BlockWeights(block) for block in unit.blocks if isinstance(block, TransformerBlock)]


@dataclass(frozen=True)
class _Batch:
    """Inputs that both halves share. tiles: at most, of one half's attention."""

    config: EstimatorConfig
    network: Estimator
    pages: FlowPages
    arrays: BatchArrays[Tensor]
    tuning: Tuning
    units: list[_UnitWeights]
    tiles: int


class _Half:
    """Launches of one guidance half, on the current stream and, for attention, another one."""

    def __init__(self, batch: _Batch, buffers: FlowBuffers, half: int, left_context_chunks: int) -> None:
        self.batch = batch
        self.half = half
        self.frames = len(batch.arrays.frames.index)
        rows = slice(half * self.frames, (half + 1) * self.frames)
        width = batch.config.channels[0]
        self.width = width
        self.live = batch.arrays.frames.live
        self.inputs, self.joined = buffers.inputs[rows], buffers.joined[rows]
        self.x, self.normed, self.raw, self.active, self.source = (
            tensor[rows] for tensor in (buffers.x, buffers.normed, buffers.raw, buffers.active, buffers.source)
        )
        self.query, self.attended = buffers.query[rows], buffers.attended[rows]
        self._normed_tile = tile_descriptor(self.normed, _ROWS, width)
        self._attended_tile = tile_descriptor(self.attended.flatten(1), _ROWS, width)
        self._query_tile = tile_descriptor(self.query.flatten(1), _ROWS, width)
        self._source_tile = tile_descriptor(self.source, _ROWS, width)
        self._joined_tiles = [tile_descriptor(self.joined[:, at : at + width], _ROWS, width) for at in (0, width)]
        # A program of either kernel occupies a multiprocessor. Attention leaves free half as many as the other half's block kernel
        # has programs: leaving more would slow attention, and the whole, by more than the block kernel gains.
        multiprocessors = torch.cuda.get_device_properties(buffers.x.device).multi_processor_count
        spare = self.frames // (2 * _ROWS)
        self._attention_programs_beside = min(batch.tiles, max(multiprocessors // GUIDANCE_ROWS, multiprocessors - spare))
        self._attention_programs_alone = min(batch.tiles, multiprocessors)
        self._query_parts = next((parts for parts in _QUERY_PARTS if parts * self.frames // _ROWS <= multiprocessors), 1)
        self._scale = math.log2(math.e) / math.sqrt(batch.config.attention_head_dim)
        self._left = left_context_chunks
        self._tail_width = sum(conv_inputs(batch.config))

    def launch(self, step: int, time_biases: Tensor, attention: torch.cuda.Stream, is_alone: bool) -> None:
        network, width = self.batch.network, self.width
        down, *mids, up = self.batch.units
        self._step, self._tail_column, self._block = step, 0, 0
        self._attention_stream = attention
        self._attention_programs = self._attention_programs_alone if is_alone else self._attention_programs_beside
        self._unit(down, self.inputs, time_biases[0], self._joined_tiles[1])
        self._convolve(network.down_conv, self.joined[:, width:], self.source)
        for index, unit in enumerate(mids):
            self._unit(unit, self.source, time_biases[index + 1], self._joined_tiles[0] if index == len(mids) - 1 else self._source_tile)
        self._unit(up, self.joined, time_biases[-1], self._source_tile)
        self._convolve(network.up_conv, self.source, self.active)
        self._convolve(network.final_block.conv, self.active, self.raw)
        assert self._tail_column == self._tail_width

    def _unit(self, unit: _UnitWeights, source: Tensor, time_bias: Tensor, out: Any) -> None:
        """source: 16 bit [rows, channels] of any row stride; out: tile descriptor for the unit's result in 16 bit."""
        self._residual(unit, source, time_bias)
        self._between(None, unit.blocks[0], self._normed_tile)
        for block, following in zip(unit.blocks, [*unit.blocks[1:], None], strict=True):
            self._attend_aside()
            self._block += 1
            self._between(block, following, self._normed_tile if following is not None else out)

    def _residual(self, unit: _UnitWeights, source: Tensor, time_bias: Tensor) -> None:
        block, sizes = unit.residual, {"WIDTH": self.width, "TAIL_WIDTH": self._tail_width, "EPS": _EPS}
        rows, _, depth, stages, warps = self.batch.tuning.residual
        norm, channels = block.block1.norm, block.block1.conv.weight.shape[2]
        kernels_convolution_many.window_activate[(self.frames // rows,)](
            *self._window(block.block1.conv, source), norm.weight, norm.bias, time_bias, self.active,
            rows=self.frames, CHANNELS=channels, TILE=rows, STEP=math.gcd(channels, depth), STAGES=stages, num_warps=warps, **sizes,
        )  # fmt: skip
        norm, shortcut, following = block.block2.norm, block.shortcut, unit.blocks[0].module.norm_attention
        kernels_convolution_many.window_residual[(self.frames // rows,)](
            *self._window(block.block2.conv, self.active), norm.weight, norm.bias, source, source.stride(0), shortcut.weight, shortcut.bias,
            self.x, self.normed, following.weight, following.bias, *self._keep(),
            rows=self.frames, CHANNELS=self.width, SOURCE_CHANNELS=channels, TILE=rows, STEP=math.gcd(channels, depth), STAGES=stages,
            num_warps=warps, **sizes,
        )  # fmt: skip

    def _window(self, conv: WindowLinear, source: Tensor) -> tuple[Any, ...]:
        """A convolution's arguments; advances the column of the tails."""
        arrays, column = self.batch.arrays, self._tail_column
        self._tail_column += conv.weight.shape[2]
        return (
            source, source.stride(0), conv.weight, conv.bias, self.live, arrays.frames.index, arrays.frames.last, arrays.frames.tail,
            self.batch.pages.tail[self._step][self.half], 0, column,
        )  # fmt: skip

    def _convolve(self, conv: WindowLinear, source: Tensor, out: Tensor) -> None:
        channels = conv.weight.shape[2]
        rows, features, depth, stages, warps = self.batch.tuning.conv
        kernels_convolution_many.window_linear[(self.frames // rows, self.width // features)](
            *self._window(conv, source), out,
            rows=self.frames, CHANNELS=channels, WIDTH=self.width, TAIL_WIDTH=self._tail_width, TILE=rows, FEATURES=features,
            STEP=math.gcd(channels, depth), STAGES=stages, PDL=False, num_warps=warps,
        )  # fmt: skip

    def _memory(self) -> Tensor:
        """Pages of the current block's normalised inputs."""
        memory: Tensor = self.batch.pages.context[self._step, self._block][self.half]
        return memory

    def _keep(self) -> tuple[Tensor, Tensor, int]:
        return self.batch.arrays.frames.keep, self._memory(), 0

    def _attend_aside(self) -> None:
        rest = torch.cuda.current_stream(self.x.device)
        self._attention_stream.wait_stream(rest)
        with torch.cuda.stream(self._attention_stream):
            self._attend()
        rest.wait_stream(self._attention_stream)

    def _attend(self) -> None:
        batch, arrays = self.batch, self.batch.arrays
        frames, keys, warps = batch.tuning.attention
        kernels_attention_many.attend_pages_large[(self._attention_programs, 1)](
            self.query, self.normed, self._memory(), 0, arrays.estimator_tiles, arrays.frames.session, arrays.table,
            self.attended, self._scale,
            rows=self.frames, WIDTH=self.width, HEADS=batch.config.num_heads, CHUNK=batch.pages.chunk_frames,
            TABLE=arrays.table.shape[1], LEFT=self._left, FRAMES=frames, KEYS=keys, num_warps=warps,
        )  # fmt: skip

    def _between(self, block: _BlockWeights | None, following: _BlockWeights | None, out: Any) -> None:
        """The rest of ``block`` after its attention, and the query of ``following``; either may be None."""
        some = block or following
        assert some is not None
        module = some.module
        after = following.module if following is not None else module  # not read without a following block
        query = following or some
        # the last block of a unit keeps nothing; its pages' address is not used
        keep = self._keep() if following is not None else (self.batch.arrays.frames.keep, self.normed, 0)
        heads = self.batch.config.num_heads // (1 if block is not None else self._query_parts)
        kernels_block_many.block_rows[(self.frames // _ROWS, self.batch.config.num_heads // heads)](
            self._attended_tile if block is not None else self._normed_tile,
            some.value, some.output, some.linear_in, some.linear_out, query.query, query.key, self._query_tile, out,
            module.to_out.bias, module.linear_in.bias, module.linear_out.bias,
            module.norm_feed_forward.weight, module.norm_feed_forward.bias,
            after.norm_attention.weight, after.norm_attention.bias, self.live, self.x, *keep,
            rows=self.frames, HEADS=heads, HIDDEN=module.linear_in.weight.shape[0] // 64, SUM=block is not None,
            QUERY=following is not None, EPS=_EPS, num_warps=8,
        )  # fmt: skip
