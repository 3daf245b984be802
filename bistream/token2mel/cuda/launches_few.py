"""One evaluation of the estimator for few rows: three or four kernels per transformer block, two per residual block.

State is read from and written to the pages, at the places that the batch's arrays name. The two guidance halves share nothing before
the end of an evaluation, so each has its own stream (in a recorded graph: its own branch), and one computes while the other waits for
memory.

The kernels of a half follow one another by programmatic dependent launch, where the GPU has it (from compute capability 9.0 on): a
kernel prefetches its weights while its predecessor runs. For that, two successive kernels should fit on a
multiprocessor together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from bistream.checkpoints.config import EstimatorConfig
from bistream.token2mel.cuda import kernels_attention_few, kernels_convolution_few, kernels_feed_forward
from bistream.token2mel.cuda.batch import WINDOW_FRAMES, BatchArrays
from bistream.token2mel.cuda.memory import FlowBuffers
from bistream.token2mel.cuda.tuning import FewTiles, fitting
from bistream.token2mel.estimator import Estimator, ResidualBlock, TransformerBlock, Unit, block_count, conv_inputs
from bistream.token2mel.layers import WindowLinear
from bistream.token2mel.pages import GUIDANCE_ROWS, FlowPages

_EPS = 1e-5
_WIDENING_PROGRAMS = 256  # about two for each multiprocessor of a large GPU
_WIDENED_ROWS = 4  # that each takes at a time
_WINDOW = WINDOW_FRAMES + 2  # rows of a convolution's window, history included


@dataclass(frozen=True)
class _Source:
    """Input of a convolution. kind: see ``kernels_convolution_few.window_few``; norm and time: of kind "raw"."""

    rows: Tensor
    kind: str
    norm: nn.LayerNorm | None = None
    time: Tensor | None = None


class FewEstimator:
    """Launches for one bucket. arrays: the batch on the device, see ``batch_filling.fill``."""

    def __init__(
        self,
        config: EstimatorConfig,
        network: Estimator,
        pages: FlowPages,
        buffers: FlowBuffers,
        arrays: BatchArrays[Tensor],
        tiles: FewTiles,
        left_context_chunks: int,
    ) -> None:
        gpu: Any = torch.cuda.get_device_properties(buffers.x.device)
        tiles = fitting(tiles, gpu.shared_memory_per_block_optin, has_warp_groups=gpu.major == 9)
        batch = _Batch(config, network, pages, arrays, tiles, left_context_chunks, dependent_launch=gpu.major >= 9)
        self._halves = [_Half(batch, buffers, half) for half in range(GUIDANCE_ROWS)]
        self._device = buffers.x.device

    def launch(self, step: int, time_biases: Tensor, halves: int = GUIDANCE_ROWS) -> None:
        """time_biases: [units, width] of this solver step. halves: 1 leaves out the unconditioned one.

        In: ``buffers.inputs``. Out: ``buffers.raw``.
        """
        current = torch.cuda.current_stream(self._device)
        streams = _streams(self._device)[:halves]
        for stream in streams:
            stream.wait_stream(current)
        for half, stream in zip(self._halves[:halves], streams, strict=True):
            with torch.cuda.stream(stream):
                half.launch(step, time_biases)
        for stream in streams:
            current.wait_stream(stream)


@cache
def _streams(device: torch.device) -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream(device) for _ in range(GUIDANCE_ROWS)]  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class _Batch:
    """Inputs that both halves share."""

    config: EstimatorConfig
    network: Estimator
    pages: FlowPages
    arrays: BatchArrays[Tensor]
    tiles: FewTiles
    left_context_chunks: int
    dependent_launch: bool


class _Half:
    """Launches of one guidance half on the current stream."""

    def __init__(self, batch: _Batch, buffers: FlowBuffers, half: int) -> None:
        self.batch = batch
        self.half = half
        self.frames = len(batch.arrays.frames.index)
        rows = slice(half * self.frames, (half + 1) * self.frames)
        self.inputs, self.x, self.odd, self.shortcut, self.middle, self.normed, self.query = (
            tensor[rows]
            for tensor in (buffers.inputs, buffers.x, buffers.odd, buffers.shortcut, buffers.middle, buffers.normed, buffers.query)
        )
        self.raw, self.active, self.source = (tensor[rows] for tensor in (buffers.raw, buffers.active, buffers.source))
        self.widened = buffers.widened[half]
        split_rows = batch.tiles.key_splits * self.frames
        splits = slice(half * split_rows, (half + 1) * split_rows)
        self.parts, self.lse = buffers.parts[splits], buffers.lse[splits]
        config = batch.config
        self.width = config.channels[0]
        self.live = batch.arrays.frames.live
        self._tail_width = sum(conv_inputs(config))
        self._heads = {"WIDTH": self.width, "HEADS": config.num_heads, "HEAD": config.attention_head_dim}
        self._units = [unit for unit in batch.network.units if isinstance(unit, Unit)]
        self._scale = math.log2(math.e) / math.sqrt(config.attention_head_dim)

    def launch(self, step: int, time_biases: Tensor) -> None:
        network = self.batch.network
        down, *mids, up = self._units
        self._step, self._tail_column, self._block = step, 0, 0
        stream = _Source(self.x, "stream")
        self._unit(down, _Source(self.inputs, "rows"), time_biases[0])
        self._convolve(network.down_conv, stream, self.raw, save=self.source)
        source = _Source(self.raw, "rows")
        for index, unit in enumerate(mids):
            self._unit(unit, source, time_biases[index + 1])
            source = stream
        self._unit(up, stream, time_biases[-1])  # together with the saved result, see ``_convolve``
        self._convolve(network.up_conv, stream, self.active)
        self._convolve(network.final_block.conv, _Source(self.active, "rows"), self.raw)
        assert self._block == block_count(self.batch.config) and self._tail_column == self._tail_width

    def _unit(self, unit: Unit, source: _Source, time_bias: Tensor) -> None:
        residual = unit.residual
        self._convolve(residual.block1.conv, source, self.middle, shortcut=residual.shortcut)
        self._convolve(residual.block2.conv, _Source(self.middle, "raw", residual.block1.norm, time_bias), self.active)
        blocks = [block for block in unit.blocks if isinstance(block, TransformerBlock)]
        for index, block in enumerate(blocks):
            self._query(block, residual if index == 0 else None)
            self._attend(block)
            self._feed_forward(block)
            self._block += 1

    def _convolve(
        self, conv: WindowLinear, source: _Source, out: Tensor, shortcut: WindowLinear | None = None, save: Tensor | None = None
    ) -> None:
        """A stream with more channels than the width continues in ``source``, where ``save`` put the first unit's result."""
        batch, arrays, channels = self.batch, self.batch.arrays, conv.weight.shape[2]
        features = batch.tiles.window_features
        norm = source.norm or batch.network.final_block.norm  # not read without "raw"
        time = source.time if source.time is not None else norm.bias
        straight = shortcut or conv
        is_first = self._tail_column == 0  # it follows a kernel of another stream and must wait for its end
        kernels_convolution_few.window_few[(self.width // features * len(arrays.window_item),)](
            source.rows, source.rows.stride(0), self.source, norm.weight, norm.bias, time, conv.weight, conv.bias,
            straight.weight, straight.bias, arrays.window_items, arrays.window_item, arrays.frames.tail,
            batch.pages.tail[self._step][self.half], self._tail_column, out, self.shortcut, self.source,
            CHANNELS=channels, FEATURES=features, STEP=math.gcd(channels, self.width), SOURCE=source.kind,
            SHORTCUT=shortcut is not None, SAVE=save is not None, WINDOW=_WINDOW, WIDTH=self.width, TAIL_WIDTH=self._tail_width, EPS=_EPS,
            maxnreg=128, **self._options(8, follows=not is_first),
        )  # fmt: skip
        self._tail_column += channels

    def _query(self, block: TransformerBlock, residual: ResidualBlock | None) -> None:
        """residual: the residual block before this block, if it is the first of its unit."""
        batch, arrays, norm, rows = self.batch, self.batch.arrays, block.norm_attention, self.batch.tiles.rows
        before = residual.block2.norm if residual is not None else norm
        stored = batch.pages.context[self._step, self._block, self.half]
        queries = batch.config.num_heads * self.frames // rows
        kernels_attention_few.query_few[(queries + _WIDENING_PROGRAMS,)](
            self.x if residual is None else self.shortcut, self.active, before.weight, before.bias, norm.weight, norm.bias,
            block.to_query.weight, block.to_keys_values.weight, block.to_out.bias, self.live, arrays.frames.keep, self.odd,
            self.normed, stored.values, stored.scales, self.query, queries, arrays.widened_page, arrays.widened, self.widened,
            FIRST=residual is not None, ROWS=rows, CHUNK=batch.pages.chunk_frames, WIDENED_ROWS=_WIDENED_ROWS, EPS=_EPS,
            **self._heads, **self._options(4 if rows < 32 else 8),
        )  # fmt: skip

    def _attend(self, block: TransformerBlock) -> None:
        """Attention, values and output projection, added to ``odd``."""
        batch, arrays, tiles = self.batch, self.batch.arrays, self.batch.tiles
        heads, chunk, splits = batch.config.num_heads, batch.pages.chunk_frames, tiles.key_splits
        values, output = block.to_keys_values.weight[block.to_query.weight.shape[0] :], block.to_out.weight
        kernels_attention_few.attend_few[(heads * -(-chunk // tiles.attend_rows) * len(arrays.chunk_item),)](
            self.query, self.normed, self.widened, arrays.chunk_items, arrays.chunk_item, arrays.widened_table, values, output,
            self.parts, self.lse, self.odd, self.x, self._scale, self.frames, CHUNK=chunk, TABLE=arrays.table.shape[1],
            LEFT=batch.left_context_chunks, SPLITS=splits, ROWS=tiles.attend_rows, STAGES=tiles.attend_stages,
            **self._heads, **self._options(4),
        )  # fmt: skip
        if splits > 1:
            kernels_attention_few.join_few[(heads * self.frames // tiles.rows,)](
                self.parts, self.lse, arrays.frame_splits, output, self.live, self.odd, self.frames,
                SPLITS=splits, ROWS=tiles.rows, **self._heads, **self._options(8),
            )  # fmt: skip

    def _feed_forward(self, block: TransformerBlock) -> None:
        norm, tiles, size = block.norm_feed_forward, self.batch.tiles, block.linear_in.weight.shape[0]
        rows, depth = tiles.feed_rows, tiles.feed_depth
        kernels_feed_forward.feed_forward_few[(size // depth * (self.frames // rows),)](
            self.odd, norm.weight, norm.bias, block.linear_in.weight, block.linear_in.bias, block.linear_out.weight,
            block.linear_out.bias, self.live, self.x, WIDTH=self.width, SIZE=size, DEPTH=depth, ROWS=rows, EPS=_EPS,
            **self._options(depth // 16),
        )  # fmt: skip

    def _options(self, warps: int, follows: bool = True) -> dict[str, Any]:
        """follows: the preceding kernel of the stream is one of ours."""
        dependent = self.batch.dependent_launch
        return {"PDL": dependent, "num_warps": warps, "launch_pdl": dependent and follows}
