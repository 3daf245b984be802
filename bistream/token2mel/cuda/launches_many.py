"""One evaluation of the estimator for many rows: both guidance halves in parallel, five kernels between attentions.

The halves share nothing before the end of an evaluation. Each is queued on its own stream (in a recorded graph: its own
branch), so that one half's attention overlaps the other's linear layers and convolutions, which have too few programs
for all multiprocessors. Rows, state and results as in ``launches_few``.

The kernels between two attentions follow one another by programmatic dependent launch, where the GPU has it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor, nn

from bistream.checkpoints.config import EstimatorConfig
from bistream.token2mel.cuda import kernels_attention_many, kernels_block_many, kernels_convolution_many, kernels_linear
from bistream.token2mel.cuda.batch import BatchArrays, Bucket, max_tiles
from bistream.token2mel.cuda.memory import FlowBuffers
from bistream.token2mel.cuda.tuning import TILE_FRAMES, Tuning
from bistream.token2mel.estimator import Estimator, ResidualBlock, TransformerBlock, Unit, conv_inputs
from bistream.token2mel.layers import WindowLinear
from bistream.token2mel.pages import GUIDANCE_ROWS, FlowPages

_EPS = 1e-5
_WIDENING_PROGRAMS = 512  # more would take multiprocessors from the linear layers
_WIDENED_ROWS = 16  # that each takes at a time
GLUON_TRITON = "3.6"  # PyTorch 2.11


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
        tiles = max_tiles(len(arrays.frames.index), TILE_FRAMES, bucket.sessions)
        properties = torch.cuda.get_device_properties(buffers.x.device)
        programs = properties.multi_processor_count if _has_gluon(properties) else 0
        batch = _Batch(config, network, pages, arrays, tuning, tiles, properties.major >= 9, programs)
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


def _has_gluon(properties: Any) -> bool:
    """Whether ``kernels_attention_hopper`` runs on a GPU of these properties. Its form of Triton changes with every minor version."""
    return (properties.major, properties.minor) == (9, 0) and triton.__version__.startswith(f"{GLUON_TRITON}.")


@cache
def _streams(device: torch.device) -> list[tuple[torch.cuda.Stream, torch.cuda.Stream]]:
    """Of each half: one for everything but attention, with higher priority, and one for attention.

    The former runs few programs; at equal priority they would queue after all of the other half's attention.
    """
    return [
        (torch.cuda.Stream(device, priority=-1), torch.cuda.Stream(device, priority=0))  # type: ignore[no-untyped-call]
        for _ in range(GUIDANCE_ROWS)
    ]


@dataclass(frozen=True)
class _Batch:
    """Inputs that both halves share. tiles: at most, of one half's attention. hopper_programs: that a GPU runs of
    ``kernels_attention_hopper``; 0: it runs ``kernels_attention_many``."""

    config: EstimatorConfig
    network: Estimator
    pages: FlowPages
    arrays: BatchArrays[Tensor]
    tuning: Tuning
    tiles: int
    dependent_launch: bool
    hopper_programs: int


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
        self.values, self.hidden, self.widened = buffers.values[rows], buffers.hidden[rows], buffers.widened[half]
        self._scale = math.log2(math.e) / math.sqrt(batch.config.attention_head_dim)
        self._left = left_context_chunks
        self._tail_width = sum(conv_inputs(batch.config))

    def launch(self, step: int, time_biases: Tensor, attention: torch.cuda.Stream, is_alone: bool) -> None:
        network, width = self.batch.network, self.width
        down, *mids, up = (unit for unit in network.units if isinstance(unit, Unit))
        first, second = self.joined[:, :width], self.joined[:, width:]
        self._step, self._tail_column, self._block = step, 0, 0
        self._attention_stream, self._is_alone = attention, is_alone
        attention.wait_stream(torch.cuda.current_stream(self.x.device))
        self._unit(down, self.inputs, time_biases[0], second)
        self._convolve(network.down_conv, second, self.source)
        for index, unit in enumerate(mids):
            self._unit(unit, self.source, time_biases[index + 1], first if index == len(mids) - 1 else self.source)
        self._unit(up, self.joined, time_biases[-1], self.source)
        self._convolve(network.up_conv, self.source, self.active)
        self._convolve(network.final_block.conv, self.active, self.raw)
        assert self._tail_column == self._tail_width

    def _unit(self, unit: Unit, source: Tensor, time_bias: Tensor, out: Tensor) -> None:
        """source, out: 16 bit [rows, channels] of any row stride."""
        blocks = [block for block in unit.blocks if isinstance(block, TransformerBlock)]
        self._residual(unit.residual, blocks[0], source, time_bias)
        self._query(blocks[0])
        for block, following in zip(blocks, [*blocks[1:], None], strict=True):
            self._attend_aside()
            self._block += 1
            self._after_attention(block, following, out)

    def _residual(self, block: ResidualBlock, following: TransformerBlock, source: Tensor, time_bias: Tensor) -> None:
        """``x`` and the normalised input of ``following``."""
        sizes = {"WIDTH": self.width, "TAIL_WIDTH": self._tail_width, "EPS": _EPS}
        rows, _, depth, stages, warps = self.batch.tuning.residual
        norm, channels = block.block1.norm, block.block1.conv.weight.shape[2]
        kernels_convolution_many.window_activate[(self.frames // rows,)](
            *self._window(block.block1.conv, source), norm.weight, norm.bias, time_bias, self.active,
            CHANNELS=channels, TILE=rows, STEP=math.gcd(channels, depth), STAGES=stages, num_warps=warps, **sizes,
        )  # fmt: skip
        norm, shortcut, next_norm = block.block2.norm, block.shortcut, following.norm_attention
        kernels_convolution_many.window_residual[(self.frames // rows,)](
            *self._window(block.block2.conv, self.active), norm.weight, norm.bias, source, source.stride(0), shortcut.weight, shortcut.bias,
            self.x, self.normed, next_norm.weight, next_norm.bias, self.batch.arrays.frames.keep, *self._stored(),
            CHANNELS=self.width, SOURCE_CHANNELS=channels, TILE=rows, STEP=math.gcd(channels, depth), STAGES=stages,
            num_warps=warps, **sizes,
        )  # fmt: skip

    def _window(self, conv: WindowLinear, source: Tensor) -> tuple[Any, ...]:
        """A convolution's arguments; advances the column of the tails."""
        arrays, column = self.batch.arrays, self._tail_column
        self._tail_column += conv.weight.shape[2]
        return (
            source, source.stride(0), conv.weight, conv.bias, self.live, arrays.frames.index, arrays.frames.last, arrays.frames.tail,
            self.batch.pages.tail[self._step][self.half], column,
        )  # fmt: skip

    def _convolve(self, conv: WindowLinear, source: Tensor, out: Tensor) -> None:
        channels = conv.weight.shape[2]
        rows, features, depth, stages, warps = self.batch.tuning.conv
        kernels_convolution_many.window_linear[(self.frames // rows, self.width // features)](
            *self._window(conv, source), out,
            CHANNELS=channels, WIDTH=self.width, TAIL_WIDTH=self._tail_width, TILE=rows, FEATURES=features,
            STEP=math.gcd(channels, depth), STAGES=stages, PDL=False, num_warps=warps,
        )  # fmt: skip

    def _stored(self) -> tuple[Tensor, Tensor | None]:
        """Pages of the current block's normalised inputs: integers and scales."""
        stored = self.batch.pages.context[self._step, self._block, self.half]
        return stored.values, stored.scales

    def _attend_aside(self) -> None:
        rest = torch.cuda.current_stream(self.x.device)
        with torch.cuda.stream(self._attention_stream):
            self._widen()  # meanwhile the rest computes the query
        self._attention_stream.wait_stream(rest)
        with torch.cuda.stream(self._attention_stream):
            self._attend()
        rest.wait_stream(self._attention_stream)

    def _widen(self) -> None:
        arrays, chunk = self.batch.arrays, self.batch.pages.chunk_frames
        kernels_attention_many.widen_pages[(_WIDENING_PROGRAMS,)](
            *self._stored(), arrays.widened_page, arrays.widened, self.widened, CHUNK=chunk, WIDTH=self.width, ROWS=_WIDENED_ROWS
        )

    def _attend(self) -> None:
        batch, arrays = self.batch, self.batch.arrays
        frames, keys, stages, warps = batch.tuning.attention
        places = (arrays.estimator_tiles, arrays.frames.session, arrays.widened_table)
        tensors = (self.query, self.normed, self.widened, *places, self.attended)
        sizes = {"WIDTH": self.width, "HEADS": batch.config.num_heads, "CHUNK": batch.pages.chunk_frames, "TABLE": arrays.table.shape[1]}
        if batch.hopper_programs:
            self._attend_on_hopper(*tensors, self._scale, LEFT=self._left, FRAMES=TILE_FRAMES, KEYS=64, num_warps=4, **sizes)
            return
        parts = TILE_FRAMES // frames
        kernels_attention_many.attend_pages[(batch.tiles * parts,)](
            *tensors, self._scale, LEFT=self._left, FRAMES=frames, PARTS=parts, KEYS=keys, STAGES=stages, num_warps=warps, **sizes
        )

    def _attend_on_hopper(self, *arguments: Any, **sizes: Any) -> None:
        """In programs that take a multiprocessor each, and tiles in turn. The linear layers of the other half need a few as well."""
        from bistream.token2mel.cuda import kernels_attention_hopper  # noqa: PLC0415  (needs one version of Triton)

        programs = self.batch.hopper_programs
        if not self._is_alone:
            programs = max(programs // GUIDANCE_ROWS, programs - self.frames // 128)
        kernels_attention_hopper.attend_pages_large[(min(self.batch.tiles, programs),)](*arguments, **sizes)

    def _after_attention(self, block: TransformerBlock, following: TransformerBlock | None, out: Tensor) -> None:
        """The rest of ``block``, then the query of ``following``; without one the sum goes to ``out`` in 16 bit."""
        inner = block.to_query.weight.shape[0]
        self._linear(self.attended.flatten(1), self.width, block.to_keys_values.weight[inner:], None, "", self.values)
        self._add(block.to_out, self.values, block.norm_feed_forward, self.normed)
        self._linear(self.normed, 0, block.linear_in.weight, block.linear_in.bias, "gelu", self.hidden)
        if following is None:
            self._add(block.linear_out, self.hidden, None, out)
        else:
            self._add(block.linear_out, self.hidden, following.norm_attention, self.normed, keeps=True)
            self._query(following)

    def _linear(self, rows: Tensor, step: int, weight: Tensor, bias: Tensor | None, activation: str, out: Tensor) -> None:
        """step: columns between the inputs of two heads; 0: all features have the same input."""
        features, depth = weight.shape
        tile, tile_features, tile_depth, stages, warps = self.batch.tuning.values if step else self.batch.tuning.hidden
        kernels_linear.linear[(features // tile_features, self.frames // tile)](
            rows, rows.stride(0), step, weight, bias, self.live, out, out.stride(0),
            DEPTH=depth, TILE=tile, FEATURES=tile_features, STEP=tile_depth, STAGES=stages, ACTIVATION=activation,
            **self._options(warps, follows=not step),
        )  # fmt: skip

    def _add(self, linear: nn.Linear, rows: Tensor, norm: nn.LayerNorm | None, out: Tensor, keeps: bool = False) -> None:
        """Onto ``x``, whose LayerNorm goes to ``out``; without ``norm`` the sum itself does, and ``x`` stays. keeps: to pages, too."""
        tile, _, depth, stages, warps = self.batch.tuning.add
        gamma, beta = (norm.weight, norm.bias) if norm is not None else (None, None)
        keep, values, scales = (self.batch.arrays.frames.keep, *self._stored()) if keeps else (None, None, None)
        kernels_block_many.add_rows[(self.frames // tile,)](
            rows, linear.weight, linear.bias, self.live, self.x, gamma, beta, out, out.stride(0), keep, values, scales,
            DEPTH=rows.shape[1], WIDTH=self.width, TILE=tile, STEP=depth, STAGES=stages, EPS=_EPS, **self._options(warps),
        )  # fmt: skip

    def _query(self, block: TransformerBlock) -> None:
        tile, _, depth, stages, warps = self.batch.tuning.query
        heads, inner = self.batch.config.num_heads, block.to_query.weight.shape[0]
        kernels_block_many.fold_query[(self.frames // tile, heads)](
            self.normed, block.to_query.weight, block.to_keys_values.weight[:inner], self.live, self.query,
            WIDTH=self.width, HEADS=heads, HEAD=inner // heads, TILE=tile, STEP=depth, STAGES=stages, **self._options(warps),
        )  # fmt: skip

    def _options(self, warps: int, follows: bool = True) -> dict[str, Any]:
        """follows: after a kernel of the same stream, whose end it waits for itself."""
        dependent = self.batch.dependent_launch
        return {"PDL": dependent, "num_warps": warps, "launch_pdl": dependent and follows}
