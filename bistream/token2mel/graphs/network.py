"""The U-Net over packed tiles: the launches that a graph records.

``BatchTensors`` is what one batch reads and ``FlowPages`` what it reads and writes, all at fixed addresses. The arithmetic
is that of ``estimator.Estimator``, with attention folded (``weights``) and the residual stream and its norms in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bistream.token2mel.graphs.operations import Operations
from bistream.token2mel.graphs.solver import halves
from bistream.token2mel.graphs.weights import BlockWeights, EstimatorWeights, LinearWeights, ResidualWeights
from bistream.token2mel.pages import GUIDANCE_ROWS, FlowPages
from bistream.token2mel.sizes import CONV_HISTORY_FRAMES


@dataclass(frozen=True)
class BatchTensors:
    """Both guidance halves of a batch, made from its arrays (``Layout.fill``): the second half's tiles and pages follow the first's.

    rows, tail_rows: see ``operations.window``. page_live: int32 [2 * pages].
    """

    live: Tensor
    page: Tensor
    visible: Tensor
    lists: Tensor
    rows: Tensor
    tail_rows: Tensor
    page_live: Tensor


def batch_tensors(arrays: Mapping[str, Tensor], pages: FlowPages, rows: int) -> BatchTensors:
    """rows: of a tile. Launches a few small kernels, once per batch."""
    count = pages.context.shape[3]
    device = arrays["live"].device
    page_live = torch.full((count,), pages.chunk_frames, dtype=torch.int32, device=device)
    page_live[pages.scratch.start : pages.scratch.stop] = arrays["scratch_live"][: len(pages.scratch)]
    previous, last = halves(arrays["previous"].long(), len(arrays["previous"])), halves(arrays["last"].long(), count)
    is_first = torch.cat([arrays["previous"]] * GUIDANCE_ROWS) < 0
    tap = torch.arange(rows, device=device)[:, None] + torch.arange(-CONV_HISTORY_FRAMES, 1, device=device)  # [rows, 3]
    own = torch.arange(len(is_first), device=device)[:, None, None] * rows + tap.clamp(min=0)
    before = previous.clamp(min=0)[:, None, None] * rows + pages.chunk_frames + tap
    stored = last[:, None, None] * CONV_HISTORY_FRAMES + CONV_HISTORY_FRAMES + tap
    is_before, is_stored = (tap < 0) & ~is_first[:, None, None], (tap < 0) & is_first[:, None, None]
    return BatchTensors(
        live=torch.cat([arrays["live"]] * GUIDANCE_ROWS),
        page=halves(arrays["page"].long(), count),
        visible=torch.cat([arrays["visible"]] * GUIDANCE_ROWS),
        lists=halves(arrays["lists"], count),
        rows=torch.where(is_before, before, own),
        tail_rows=torch.where(is_stored, stored, -1),
        page_live=torch.cat([page_live] * GUIDANCE_ROWS),
    )


class PackedEstimator:
    """One evaluation per call. x: the residual stream, float32; delta: what the next function adds to it."""

    def __init__(self, weights: EstimatorWeights, time_biases: Tensor, pages: FlowPages, operations: Operations) -> None:
        """time_biases: [steps, units, width]."""
        self._weights = weights
        self._time_biases = time_biases
        self._pages = pages
        self._operations = operations

    def prepare(self, arrays: Mapping[str, Tensor]) -> BatchTensors:
        return batch_tensors(arrays, self._pages, self._pages.context_rows.shape[-2])

    def velocity(self, inputs: Tensor, step: int, batch: BatchTensors) -> Tensor:
        time_biases = self._time_biases[step]
        weights, call = self._weights, _Evaluation(self._pages, self._operations, step, batch)
        *earlier, up = range(len(weights.units))
        x = inputs
        for number in earlier:
            x = self._unit(x, number, time_biases, call)
            if number == 0:
                skip, x = x, call.convolve(x, weights.down_conv)
        x = self._unit(torch.cat([x, skip], dim=2), up, time_biases, call)
        x = call.convolve(x, weights.up_conv)
        norm = weights.final_block.norm
        x = self._operations.activate_stream(call.convolve(x, weights.final_block.linear), **norm.arguments).to(inputs.dtype)
        return _linear(x, weights.final_projection)

    def _unit(self, x: Tensor, number: int, time_biases: Tensor, call: _Evaluation) -> Tensor:
        unit = self._weights.units[number]
        stream, delta = call.residual(x, unit.residual, time_biases[number : number + 1])
        for block in unit.blocks:
            stream, delta = call.transform(stream, delta, block)
        return self._operations.settle(stream, delta)


class _Evaluation:
    """Counts convolutions and blocks, as their state lies in network order."""

    def __init__(self, pages: FlowPages, operations: Operations, step: int, batch: BatchTensors) -> None:
        self._operations = operations
        self._batch = batch
        self._chunk = pages.chunk_frames
        self._blocks = iter(pages.context_rows[step].flatten(1, 2).unbind(0))  # of each: [2 * pages, rows, width]
        self._tail = pages.tail[step].flatten(0, 1)  # [2 * pages, 2, all convolutions]
        self._channel = 0

    def convolve(self, x: Tensor, linear: LinearWeights) -> Tensor:
        batch, first = self._batch, self._channel
        self._channel += x.shape[2]
        tail = self._tail[:, :, first : self._channel]
        windows = self._operations.window(x, tail, batch.rows, batch.tail_rows, batch.page, chunk=self._chunk)
        return _linear(windows, linear)

    def residual(self, x: Tensor, weights: ResidualWeights, time_bias: Tensor) -> tuple[Tensor, Tensor]:
        first, second = weights.first, weights.second
        hidden = self._operations.activate(self.convolve(x, first.linear), time_bias, **first.norm.arguments)
        stream = self._operations.activate_stream(self.convolve(hidden, second.linear), **second.norm.arguments)
        return stream, _linear(x, weights.shortcut)

    def transform(self, x: Tensor, delta: Tensor, weights: BlockWeights) -> tuple[Tensor, Tensor]:
        """One transformer block."""
        operations, batch, pages = self._operations, self._batch, next(self._blocks)
        x, normed = operations.add_norm_store(x, delta, batch.live, pages, batch.page, **weights.norm_attention.arguments)
        query = F.linear(normed, weights.query)
        attended = operations.attend(query, pages, pages, batch.visible, batch.lists, batch.page_live, weights.heads, weights.scale)
        x, normed = operations.add_norm(x, _linear(attended, weights.output), **weights.norm_feed_forward.arguments)
        return x, _linear(F.gelu(_linear(normed, weights.linear_in)), weights.linear_out)


def _linear(x: Tensor, weights: LinearWeights) -> Tensor:
    return F.linear(x, weights.weight, weights.bias)
