"""One evaluation of the estimator for few rows: four kernels per transformer block, two per residual block.

Takes the place of ``estimator.CudaEstimator`` where the sizes fit (``fits_few``): same buffers, same state in the same pages.
All kernels follow one another by programmatic dependent launch: a kernel fetches its weights and stored chunks while its predecessor
works. For that, two neighbouring kernels must fit on a multiprocessor together, and two programs of one kernel must not meet on one
while others are idle. So every launch fills the whole GPU: programs without work wait for the predecessor and end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bistream.config import EstimatorConfig
from bistream.token2mel.cuda import kernels_few_blocks, kernels_few_conv
from bistream.token2mel.cuda.buffers import FlowBuffers
from bistream.token2mel.cuda.layout import KEY_SPLITS, Bucket
from bistream.token2mel.cuda.packing import lane_order, window_parts
from bistream.token2mel.cuda.tuning import Tuning
from bistream.token2mel.estimator import Estimator, ResidualBlock, TransformerBlock, Unit, block_count, conv_inputs
from bistream.token2mel.layers import WindowLinear
from bistream.token2mel.pages import GUIDANCE_ROWS, FlowPages

_EPS = 1e-5
_ROWS = 16  # of a program of the linear layers
_DEPTH = 128  # hidden features of a program of the feed-forward
_SLOTS = 3  # key tiles of a program of the attention that are on their way at a time
_FEATURES = 16  # of a program of the convolutions
_SIZES = (256, 8, 64)  # width, heads, size of a head
_MAX_CHUNK = 64  # rows of a matrix instruction


def fits_few(config: EstimatorConfig) -> bool:
    """Whether the kernels are written for these sizes."""
    sizes = (config.channels[0], config.num_heads, config.attention_head_dim)
    return sizes == _SIZES and config.static_chunk_size <= _MAX_CHUNK and config.in_channels % 64 == 0


@dataclass(frozen=True)
class _Source:
    """Input of a convolution. kind: see ``kernels_few_conv.window_few``; norm and time: of kind "raw"."""

    rows: Tensor
    kind: str
    norm: nn.LayerNorm | None = None
    time: Tensor | None = None


class FewEstimator:
    """Launches for one bucket. Arguments as ``estimator.CudaEstimator``."""

    def __init__(
        self,
        config: EstimatorConfig,
        network: Estimator,
        pages: FlowPages,
        buffers: FlowBuffers,
        arrays: Mapping[str, Tensor],
        bucket: Bucket,
        tuning: Tuning,
        left_context_chunks: int,
    ) -> None:
        self.config = config
        self.network = network
        self.pages = pages
        self.buffers = buffers
        self.arrays = arrays
        self.frames = len(arrays["frame_index"])
        self.rows = GUIDANCE_ROWS * self.frames
        self.width = config.channels[0]
        self.live = arrays["live_frames"]
        self.tail_width = sum(conv_inputs(config))
        self.left_context_chunks = left_context_chunks
        self.first_result = buffers.values.view(-1)[: self.rows * self.width].view(self.rows, self.width)
        device = buffers.x.device
        self._processors = torch.cuda.get_device_properties(device).multi_processor_count
        self._scale = math.log2(math.e) / math.sqrt(config.attention_head_dim)
        self._units = [unit for unit in network.units if isinstance(unit, Unit)]
        order, inner = lane_order(self.width).to(device), config.num_heads * config.attention_head_dim
        self._values = {block: block.to_keys_values.weight[inner:, order].contiguous() for unit in self._units for block in _blocks(unit)}
        self._windows = self._pack_windows()

    def _pack_windows(self) -> dict[WindowLinear, Tensor]:
        network = self.network
        packed = {conv: window_parts(conv, None, _FEATURES) for conv in (network.down_conv, network.up_conv, network.final_block.conv)}
        for residual in (unit.residual for unit in self._units):
            packed[residual.block1.conv] = window_parts(residual.block1.conv, residual.shortcut, _FEATURES)
            packed[residual.block2.conv] = window_parts(residual.block2.conv, None, _FEATURES)
        return packed

    def launch(self, step: int, time_biases: Tensor) -> None:
        """time_biases: [units, width] of this solver step. In: ``buffers.inputs``. Out: ``buffers.raw``."""
        buffers, network = self.buffers, self.network
        down, *mids, up = self._units
        self._step = step
        self._tail_column = 0
        self._block = 0
        stream = _Source(buffers.x, "stream")
        self._unit(down, _Source(buffers.inputs, "rows"), time_biases[0])
        self._convolve(network.down_conv, stream, buffers.raw, save=buffers.source)
        source = _Source(buffers.raw, "rows")
        for index, unit in enumerate(mids):
            self._unit(unit, source, time_biases[index + 1])
            source = stream
        self._unit(up, stream, time_biases[-1])  # and what was saved, see ``_convolve``
        self._convolve(network.up_conv, stream, buffers.active)
        self._convolve(network.final_block.conv, _Source(buffers.active, "rows"), buffers.raw)
        assert self._block == block_count(self.config) and self._tail_column == self.tail_width

    def _unit(self, unit: Unit, source: _Source, time_bias: Tensor) -> None:
        residual = unit.residual
        self._convolve(residual.block1.conv, source, self.first_result, shortcut=residual.shortcut)
        activated = _Source(self.first_result, "raw", residual.block1.norm, time_bias)
        self._convolve(residual.block2.conv, activated, self.buffers.active)
        for index, block in enumerate(_blocks(unit)):
            self._query(block, residual if index == 0 else None)
            self._attend()
            self._join(block)
            self._feed_forward(block)
            self._block += 1

    def _convolve(
        self, conv: WindowLinear, source: _Source, out: Tensor, shortcut: WindowLinear | None = None, save: Tensor | None = None
    ) -> None:
        """A stream with more channels than the width goes on in ``buffers.source``, where ``save`` put the first unit's result."""
        arrays, buffers, channels = self.arrays, self.buffers, conv.weight.shape[2]
        tails = self.pages.tail[self._step]
        norm = source.norm or self.network.final_block.norm  # not read without "raw"
        time = source.time if source.time is not None else norm.bias
        kernels_few_conv.window_few[self._grid(self.width // _FEATURES * GUIDANCE_ROWS * len(arrays["window_item"]))](
            source.rows, source.rows.stride(0), buffers.source, norm.weight, norm.bias, time, self._windows[conv], conv.bias,
            (shortcut or conv).bias, arrays["window_items"], arrays["window_item"], arrays["frame_tail"], tails, tails.stride(0),
            self._tail_column, out, buffers.shortcut, buffers.source, self.frames, CHANNELS=channels,
            STEP=math.gcd(channels, self.width), SOURCE=source.kind, SHORTCUT=shortcut is not None, SAVE=save is not None,
            WIDTH=self.width, TAIL_WIDTH=self.tail_width, EPS=_EPS, maxnreg=128, **_options(8),
        )  # fmt: skip
        self._tail_column += channels

    def _query(self, block: TransformerBlock, residual: ResidualBlock | None) -> None:
        buffers, config, norm = self.buffers, self.config, block.norm_attention
        before = residual.block2.norm if residual is not None else norm
        memory = self.pages.context[self._step, self._block]
        kernels_few_blocks.query_few[self._grid(config.num_heads * self.rows // _ROWS)](
            buffers.x if residual is None else buffers.shortcut, buffers.active, before.weight, before.bias, norm.weight, norm.bias,
            block.to_query.weight, block.to_keys_values.weight, block.to_out.bias, self.live, self.arrays["frame_keep"], buffers.odd,
            buffers.normed, memory, memory.stride(0), buffers.query, self.frames, WIDTH=self.width, HEADS=config.num_heads,
            HEAD=config.attention_head_dim, FIRST=residual is not None, ROWS=_ROWS, EPS=_EPS, **_options(8),
        )  # fmt: skip

    def _attend(self) -> None:
        buffers, arrays, heads = self.buffers, self.arrays, self.config.num_heads
        memory = self.pages.context[self._step, self._block]
        kernels_few_blocks.attend_few[self._grid(heads * GUIDANCE_ROWS * len(arrays["chunk_item"]))](
            buffers.query, buffers.normed, memory, memory.stride(0), arrays["chunk_items"], arrays["chunk_item"], arrays["table"],
            buffers.attended, buffers.lse, self._scale, self.frames, WIDTH=self.width, HEADS=heads, CHUNK=self.pages.chunk_frames,
            TABLE=arrays["table"].shape[1], LEFT=self.left_context_chunks, SLOTS=_SLOTS, **_options(4),
        )  # fmt: skip

    def _join(self, block: TransformerBlock) -> None:
        buffers, config = self.buffers, self.config
        kernels_few_blocks.join_few[self._grid(config.num_heads * self.rows // _ROWS)](
            buffers.attended, buffers.lse, self.arrays["frame_splits"], self._values[block], block.to_out.weight, self.live,
            buffers.odd, buffers.x, self.frames, WIDTH=self.width, HEADS=config.num_heads, HEAD=config.attention_head_dim,
            SPLITS=KEY_SPLITS, ROWS=_ROWS, **_options(8),
        )  # fmt: skip

    def _feed_forward(self, block: TransformerBlock) -> None:
        buffers, norm = self.buffers, block.norm_feed_forward
        size = block.linear_in.weight.shape[0]
        kernels_few_blocks.feed_forward_few[self._grid(size // _DEPTH * (self.rows // _ROWS))](
            buffers.odd, norm.weight, norm.bias, block.linear_in.weight, block.linear_in.bias, block.linear_out.weight,
            block.linear_out.bias, self.live, buffers.x, self.frames, WIDTH=self.width, SIZE=size, DEPTH=_DEPTH, ROWS=_ROWS, EPS=_EPS,
            **_options(4),
        )  # fmt: skip

    def _grid(self, programs: int) -> tuple[int]:
        return (max(programs, self._processors),)


def _blocks(unit: Unit) -> list[TransformerBlock]:
    return [block for block in unit.blocks if isinstance(block, TransformerBlock)]


def _options(warps: int) -> dict[str, Any]:
    return {"num_warps": warps, "launch_pdl": True}
