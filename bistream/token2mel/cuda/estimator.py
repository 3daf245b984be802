"""One evaluation of the estimator on packed rows: the kernels in order. Called by ``solver.CudaSolver`` for each solver step.

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
from bistream.token2mel.cuda.tuning import Tile, Tuning
from bistream.token2mel.estimator import Estimator, ResidualBlock, TransformerBlock, Unit, block_count, conv_inputs, unit_inputs
from bistream.token2mel.layers import WindowLinear
from bistream.token2mel.pages import GUIDANCE_ROWS, FlowPages

_EPS = 1e-5


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
        self.tuning = tuning
        self.frames = len(arrays["frame_index"])
        self.rows = GUIDANCE_ROWS * self.frames
        self.width = config.channels[0]
        self.tiles = max_tiles(self.frames, tuning.attention[0], bucket.sessions)
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
        self._residual(unit.residual, source, time_bias, blocks[0])
        for block, following in zip(blocks, [*blocks[1:], None], strict=True):
            self._attend(block)
            self._feed_forward(block, following, out)
            self._block += 1

    def _residual(self, block: ResidualBlock, source: Tensor, time_bias: Tensor, following: TransformerBlock) -> None:
        buffers, tuning = self.buffers, self.tuning
        self._convolve(block.block1.conv, source, buffers.raw)
        rows, warps = tuning.activate
        kernels_conv.activate_rows[(self._row_tiles(rows),)](
            buffers.raw, block.block1.norm.weight, block.block1.norm.bias, time_bias, self.live, buffers.active,
            rows=self.frames, WIDTH=self.width, TILE=rows, EPS=_EPS, **self._options(warps),
        )  # fmt: skip
        self._convolve(block.block2.conv, buffers.active, buffers.raw)
        norm, shortcut = block.block2.norm, block.shortcut
        channels = shortcut.weight.shape[2]
        rows, features, depth, stages, warps = tuning.residual
        features = min(features, self.width)
        kernels_conv.residual_out[(self._row_tiles(rows), self.width // features)](
            buffers.raw, norm.weight, norm.bias, source, source.stride(0), shortcut.weight, shortcut.bias, self.live, buffers.x,
            buffers.normed, following.norm_attention.weight, following.norm_attention.bias, *self._keep(self._block),
            rows=self.frames, CHANNELS=channels, WIDTH=self.width, TILE=rows, FEATURES=features, STEP=_step(channels, depth),
            STAGES=stages, NORM=not tuning.few, EPS=_EPS, **self._options(warps),
        )  # fmt: skip

    def _convolve(self, conv: WindowLinear, source: Tensor, out: Tensor) -> None:
        arrays = self.arrays
        channels = conv.weight.shape[2]
        rows, features, depth, stages, warps = self.tuning.conv
        features = min(features, self.width)
        tails = self.pages.tail[self._step]
        kernels_conv.window_linear[(self._row_tiles(rows), self.width // features)](
            source, source.stride(0), conv.weight, conv.bias, self.live, arrays["frame_index"], arrays["frame_last"], arrays["frame_tail"],
            tails, tails.stride(0), self._tail_column, out,
            rows=self.frames, CHANNELS=channels, WIDTH=self.width, TAIL_WIDTH=self.tail_width, TILE=rows, FEATURES=features,
            STEP=_step(channels, depth), STAGES=stages, **self._options(warps),
        )  # fmt: skip
        self._tail_column += channels

    def _keep(self, block: int) -> tuple[Tensor, Tensor, int]:
        """Where the normalised input of a transformer block is kept: rows, memory of the block, distance of its halves."""
        memory = self.pages.context[self._step, block]
        return self.arrays["frame_keep"], memory, memory.stride(0)

    def _attend(self, block: TransformerBlock) -> None:
        """x += attention(LayerNorm(x)); what the feed-forward needs of it goes to ``normed`` where rows are whole."""
        buffers, tuning, inner = self.buffers, self.tuning, self.config.num_heads * self.config.attention_head_dim
        key_weight, value_weight = block.to_keys_values.weight[:inner], block.to_keys_values.weight[inner:]
        rows, stages, warps = tuning.query
        heads = {**self._sizes, "HEAD": self.config.attention_head_dim}
        if tuning.few:
            norm = block.norm_attention
            kernels_attention.query_rows[(self._row_tiles(rows), self.config.num_heads)](
                buffers.x, norm.weight, norm.bias, block.to_query.weight, key_weight, self.live, *self._keep_query(),
                buffers.query, rows=self.frames, TILE=rows, EPS=_EPS, **heads, **self._options(warps),
            )  # fmt: skip
        else:
            programs = max(1, min(self._row_tiles(rows), 128 // self.config.num_heads))
            kernels_attention.query_normed[(programs, self.config.num_heads)](
                buffers.normed, block.to_query.weight, key_weight, self.live, buffers.query,
                rows=self.frames, TILE=rows, STAGES=stages, **heads, **self._options(warps),
            )  # fmt: skip
        self._attend_pages()
        rows, _, warps = tuning.value
        kernels_attention.value_rows[(self._row_tiles(rows), self.config.num_heads)](
            buffers.attended, buffers.lse, value_weight, self.live, buffers.values,
            rows=self.frames, TILE=rows, SPLITS=tuning.attention[2], **heads, **self._options(warps),
        )  # fmt: skip
        self._onto_residual(block.to_out, buffers.values, tuning.output, block.norm_feed_forward, None, None)

    def _keep_query(self) -> tuple[Tensor, Tensor, Tensor, int]:
        keep, memory, stride = self._keep(self._block)
        return keep, self.buffers.normed, memory, stride

    def _attend_pages(self) -> None:
        buffers, arrays = self.buffers, self.arrays
        memory = self.pages.context[self._step, self._block]
        frames, keys, splits, stages, warps = self.tuning.attention
        batch = (arrays["tiles_estimator"], arrays["session_frames"], arrays["table"])
        kernels_attention.attend_pages[(self.tiles, GUIDANCE_ROWS, splits)](
            buffers.query, buffers.normed, memory, memory.stride(0), *batch, buffers.attended, buffers.lse, self._scale,
            rows=self.frames, FRAMES=frames, KEYS=keys, SPLITS=splits, STAGES=stages, **self._attention, **self._options(warps),
        )  # fmt: skip

    def _feed_forward(self, block: TransformerBlock, following: TransformerBlock | None, out: Tensor) -> None:
        """x += feed-forward; after the last block of a unit the sum goes to ``out`` in 16 bit."""
        buffers, tuning, linear = self.buffers, self.tuning, block.linear_in
        rows, features, depth, stages, warps = tuning.linear_in
        size = linear.weight.shape[0]
        features = min(features, size)
        norm_next = following.norm_attention if following is not None else None
        if tuning.few:
            norm = block.norm_feed_forward
            kernels_linear.norm_linear[(self._row_tiles(rows), size // features)](
                buffers.x, norm.weight, norm.bias, linear.weight, linear.bias, self.live, buffers.hidden, size,
                rows=self.frames, WIDTH=self.width, TILE=rows, FEATURES=features, EPS=_EPS, ACTIVATION="gelu", **self._options(warps),
            )  # fmt: skip
        else:
            kernels_linear.linear[(size // features, self._row_tiles(rows))](
                buffers.normed, linear.weight, linear.bias, self.live, buffers.hidden, size,
                rows=self.frames, DEPTH=self.width, TILE=rows, FEATURES=features, STEP=_step(self.width, depth), STAGES=stages,
                ACTIVATION="gelu", **self._options(warps),
            )  # fmt: skip
        self._onto_residual(block.linear_out, buffers.hidden, tuning.linear_out, norm_next, self._block + 1, out)

    def _onto_residual(
        self, linear: nn.Linear, a: Tensor, tile: Tile, norm: nn.LayerNorm | None, keep_block: int | None, out: Tensor | None
    ) -> None:
        """x += linear(a). norm: of the next layer, if there is one in this residual stream; its input is kept with ``keep_block``."""
        buffers, depth_size = self.buffers, linear.weight.shape[1]
        rows, features, depth, stages, warps = tile
        features = min(features, self.width)
        grid = (self._row_tiles(rows), self.width // features)
        copy = "only" if norm is None else ""
        target = out if norm is None and out is not None else buffers.normed
        common = (a, linear.weight, linear.bias, self.live, buffers.x, target, target.stride(0))
        if self.tuning.few and depth == 0:
            kernels_linear.residual_linear_small[grid](
                *common, rows=self.frames, DEPTH=depth_size, WIDTH=self.width, TILE=rows, FEATURES=features, PARTS=warps, COPY=copy,
                **self._options(warps),
            )  # fmt: skip
            return
        if not self.tuning.few and norm is not None:
            copy = "norm"
        after = norm if norm is not None else self.network.final_block.norm  # not read without "norm"
        keep = copy == "norm" and keep_block is not None
        kernels_linear.residual_linear[grid](
            *common, after.weight, after.bias, *self._keep(keep_block if keep and keep_block is not None else 0),
            rows=self.frames, DEPTH=depth_size, WIDTH=self.width, TILE=rows, FEATURES=features, STEP=_step(depth_size, depth),
            STAGES=stages, COPY=copy, KEEP=keep, EPS=_EPS, **self._options(warps),
        )  # fmt: skip

    def _row_tiles(self, size: int) -> int:
        return self.rows // size

    def _options(self, warps: int) -> dict[str, Any]:
        dependent = self.tuning.dependent_launch
        return {"PDL": dependent, "num_warps": warps, "launch_pdl": dependent}


def _step(depth: int, wanted: int) -> int:
    """The largest power of two that divides ``depth``, at most ``wanted``."""
    return math.gcd(depth, wanted)


def supports(config: EstimatorConfig) -> bool:
    """Whether the kernels can compute these sizes: powers of two, not too small for a matrix instruction."""
    sizes = (config.channels[0], config.attention_head_dim, config.num_heads)
    return all(size & (size - 1) == 0 for size in sizes) and min(sizes[:2]) >= 16 and unit_inputs(config)[0] % 16 == 0
