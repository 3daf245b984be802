"""One evaluation of the estimator on packed rows, for sizes that ``estimator_few`` and ``estimator_many`` are not written for.

In: ``buffers.inputs`` [2 frames, in_channels]. Out: ``buffers.raw``, the convolution of the final block; ``finish_step`` does
the rest. State is read from and written to the pages, at the places that the batch's arrays name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from bistream.config import EstimatorConfig
from bistream.token2mel.cuda import kernels_attention, kernels_conv, kernels_linear
from bistream.token2mel.cuda.buffers import FlowBuffers
from bistream.token2mel.cuda.layout import Bucket, max_tiles
from bistream.token2mel.cuda.tuning import Tuning
from bistream.token2mel.estimator import Estimator, ResidualBlock, TransformerBlock, Unit, block_count, conv_inputs, unit_inputs
from bistream.token2mel.layers import WindowLinear
from bistream.token2mel.pages import GUIDANCE_ROWS, FlowPages

_EPS = 1e-5
_ROWS = 64  # of a program of the linear layers
_FEATURES = 64  # of a program of the feed-forward's first layer
_WINDOW_ROWS = 32  # of a program of the convolutions
_STAGES = 3
_TILE_KEYS = 64  # of one step of an attention program
_OPTIONS: dict[str, Any] = {"PDL": True, "num_warps": 4, "launch_pdl": True}


class CudaEstimator:
    """Launches for one bucket. arrays: the batch on the device, see ``layout.fill``."""

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
        self.tile = tuning.attention[0]
        self.frames = len(arrays["frame_index"])
        self.rows = GUIDANCE_ROWS * self.frames
        self.width = config.channels[0]
        self.tiles = max_tiles(self.frames, self.tile, bucket.sessions)
        self.live = arrays["live_frames"]
        self.tail_width = sum(conv_inputs(config))
        self._sizes = {"WIDTH": self.width, "HEADS": config.num_heads}
        self._attention = {**self._sizes, "CHUNK": pages.chunk_frames, "TABLE": arrays["table"].shape[1], "LEFT": left_context_chunks}
        self._scale = math.log2(math.e) / math.sqrt(config.attention_head_dim)

    def launch(self, step: int, time_biases: Tensor) -> None:
        """time_biases: [units, width] of this solver step."""
        buffers, width, network = self.buffers, self.width, self.network
        down, *mids, up = (unit for unit in network.units if isinstance(unit, Unit))
        self._step = step
        self._tail_column = 0
        self._block = 0
        joined_first, joined_second = buffers.joined[:, :width], buffers.joined[:, width:]
        self._unit(down, buffers.inputs, time_biases[0], joined_second)
        self._convolve(network.down_conv, joined_second, buffers.source)
        for index, unit in enumerate(mids):
            is_last = index == len(mids) - 1
            self._unit(unit, buffers.source, time_biases[index + 1], joined_first if is_last else buffers.source)
        self._unit(up, buffers.joined, time_biases[-1], buffers.source)
        self._convolve(network.up_conv, buffers.source, buffers.active)
        self._convolve(network.final_block.conv, buffers.active, buffers.raw)
        assert self._block == block_count(self.config) and self._tail_column == self.tail_width

    def _unit(self, unit: Unit, source: Tensor, time_bias: Tensor, out: Tensor) -> None:
        """source: 16 bit [rows, channels], rows any distance apart; out: where the unit's result goes in 16 bit."""
        blocks = [block for block in unit.blocks if isinstance(block, TransformerBlock)]
        self._residual(unit.residual, source, time_bias)
        for block in blocks:
            self._attend(block)
            self._feed_forward(block, out if block is blocks[-1] else None)
            self._block += 1

    def _residual(self, block: ResidualBlock, source: Tensor, time_bias: Tensor) -> None:
        buffers = self.buffers
        self._convolve(block.block1.conv, source, buffers.raw)
        kernels_conv.activate_rows[(self.rows // _WINDOW_ROWS,)](
            buffers.raw, block.block1.norm.weight, block.block1.norm.bias, time_bias, self.live, buffers.active,
            rows=self.frames, WIDTH=self.width, TILE=_WINDOW_ROWS, EPS=_EPS, **_OPTIONS,
        )  # fmt: skip
        self._convolve(block.block2.conv, buffers.active, buffers.raw)
        norm, shortcut = block.block2.norm, block.shortcut
        channels, features = shortcut.weight.shape[2], min(64, self.width)
        kernels_conv.residual_out[(self.rows // _WINDOW_ROWS, self.width // features)](
            buffers.raw, norm.weight, norm.bias, source, source.stride(0), shortcut.weight, shortcut.bias, self.live, buffers.x,
            rows=self.frames, CHANNELS=channels, WIDTH=self.width, TILE=_WINDOW_ROWS, FEATURES=features, STEP=_step(channels, 64),
            STAGES=_STAGES, EPS=_EPS, **_OPTIONS,
        )  # fmt: skip

    def _convolve(self, conv: WindowLinear, source: Tensor, out: Tensor) -> None:
        arrays = self.arrays
        channels, features = conv.weight.shape[2], min(64, self.width)
        tails = self.pages.tail[self._step]
        kernels_conv.window_linear[(self.rows // _WINDOW_ROWS, self.width // features)](
            source, source.stride(0), conv.weight, conv.bias, self.live, arrays["frame_index"], arrays["frame_last"], arrays["frame_tail"],
            tails, tails.stride(0), self._tail_column, out,
            rows=self.frames, CHANNELS=channels, WIDTH=self.width, TAIL_WIDTH=self.tail_width, TILE=_WINDOW_ROWS, FEATURES=features,
            STEP=_step(channels, 64), STAGES=_STAGES, **_OPTIONS,
        )  # fmt: skip
        self._tail_column += channels

    def _keep(self) -> tuple[Tensor, Tensor, int]:
        """Where the normalised input of the current transformer block is kept: rows, memory of the block, distance of its halves."""
        memory = self.pages.context[self._step, self._block]
        return self.arrays["frame_keep"], memory, memory.stride(0)

    def _attend(self, block: TransformerBlock) -> None:
        """x += attention(LayerNorm(x))"""
        buffers, arrays, inner = self.buffers, self.arrays, self.config.num_heads * self.config.attention_head_dim
        key_weight, value_weight = block.to_keys_values.weight[:inner], block.to_keys_values.weight[inner:]
        grid, heads = (self.rows // _ROWS, self.config.num_heads), {**self._sizes, "HEAD": self.config.attention_head_dim}
        norm, (keep, memory, stride) = block.norm_attention, self._keep()
        kernels_attention.query_rows[grid](
            buffers.x, norm.weight, norm.bias, block.to_query.weight, key_weight, self.live, keep, buffers.normed, memory, stride,
            buffers.query, rows=self.frames, TILE=_ROWS, EPS=_EPS, **heads, **_OPTIONS,
        )  # fmt: skip
        kernels_attention.attend_pages[(self.tiles, GUIDANCE_ROWS)](
            buffers.query, buffers.normed, memory, stride, arrays["tiles_estimator"], arrays["session_frames"], arrays["table"],
            buffers.attended, self._scale, rows=self.frames, FRAMES=self.tile, KEYS=_TILE_KEYS, STAGES=2, **self._attention,
            **{**_OPTIONS, "num_warps": 8},
        )  # fmt: skip
        kernels_attention.value_rows[grid](
            buffers.attended, value_weight, self.live, buffers.values, rows=self.frames, TILE=_ROWS, **heads, **_OPTIONS
        )
        self._onto_residual(block.to_out, buffers.values, None)

    def _feed_forward(self, block: TransformerBlock, out: Tensor | None) -> None:
        """x += feed-forward, or with ``out`` the sum to there in 16 bit."""
        buffers, linear, norm = self.buffers, block.linear_in, block.norm_feed_forward
        size = linear.weight.shape[0]
        features = min(_FEATURES, size)
        kernels_linear.norm_linear[(self.rows // _ROWS, size // features)](
            buffers.x, norm.weight, norm.bias, linear.weight, linear.bias, self.live, buffers.hidden, size,
            rows=self.frames, WIDTH=self.width, TILE=_ROWS, FEATURES=features, EPS=_EPS, ACTIVATION="gelu", **_OPTIONS,
        )  # fmt: skip
        self._onto_residual(block.linear_out, buffers.hidden, out)

    def _onto_residual(self, linear: nn.Linear, a: Tensor, out: Tensor | None) -> None:
        """x += linear(a), or with ``out`` the sum to there."""
        buffers, depth, features = self.buffers, linear.weight.shape[1], min(32, self.width)
        target = out if out is not None else buffers.normed  # not written without ``out``
        kernels_linear.residual_linear[(self.rows // _ROWS, self.width // features)](
            a, linear.weight, linear.bias, self.live, buffers.x, target, target.stride(0), rows=self.frames, DEPTH=depth,
            WIDTH=self.width, TILE=_ROWS, FEATURES=features, STEP=_step(depth, 64), STAGES=_STAGES, IS_LAST=out is not None, **_OPTIONS,
        )  # fmt: skip


def _step(depth: int, wanted: int) -> int:
    """The largest power of two that divides ``depth``, at most ``wanted``."""
    return math.gcd(depth, wanted)


def supports(config: EstimatorConfig) -> bool:
    """Whether the kernels can compute these sizes: powers of two, not too small for a matrix instruction."""
    sizes = (config.channels[0], config.attention_head_dim, config.num_heads)
    return all(size & (size - 1) == 0 for size in sizes) and min(sizes[:2]) >= 16 and unit_inputs(config)[0] % 16 == 0
