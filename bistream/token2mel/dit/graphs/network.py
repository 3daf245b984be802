"""The DiT over packed rows: the launches that a graph records. The arithmetic is that of ``dit.estimator.Dit``.

Queries, keys and values of the rows are one product; keys and values of the stored pages that the batch reads, the *context*, another,
which depends on no other block. So where they are few, those of all blocks are one launch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bistream.gpu.side_stream import SideStream
from bistream.token2mel.checks import MAX_FRAMES
from bistream.token2mel.dit.estimator import BLOCK_VECTORS, END_VECTORS, Dit, DitBlock, PositionConv
from bistream.token2mel.dit.graphs.batch import FEW_PAGES
from bistream.token2mel.dit.graphs.operations import DitOperations, PackedConv
from bistream.token2mel.dit.graphs.tiles import StoredSlots, Tiles, of_batch, turns
from bistream.token2mel.dit.pages import DitPages
from bistream.token2mel.pages import GUIDANCE_ROWS
from bistream.token2mel.sizes import DIT_CONV_GROUPS
from bistream.token2mel.state_rows import StateRows


@dataclass(frozen=True)
class PackedAttention:
    """The projections of all blocks. weight: query, key and value, [blocks, 3 * width, dim]; bias: [blocks, 3 * width].

    context_weight: key and value alone, of stored rows, [blocks, 2 * width, dim].
    """

    weight: Tensor
    bias: Tensor
    context_weight: StateRows

    @classmethod
    def of(cls, network: Dit) -> PackedAttention:
        blocks = [block for block in network.blocks if isinstance(block, DitBlock)]
        return cls(
            torch.stack([torch.cat([block.to_query.weight, block.to_keys_values.weight]) for block in blocks]),
            torch.stack([torch.cat([block.to_query.bias, block.to_keys_values.bias]) for block in blocks]),
            StateRows.stack([block.context_weight for block in blocks]),
        )

    @property
    def context_bias(self) -> Tensor:
        """[blocks, 2 * width]"""
        return self.bias[:, self.bias.shape[1] // 3 :]


class PackedDit:
    """It reads and writes pages at fixed addresses. modulations: float32 [steps, ``modulation_size``]."""

    def __init__(self, network: Dit, modulations: Tensor, pages: DitPages, operations: DitOperations) -> None:
        self._network = network
        self._modulations = modulations
        self._pages = pages
        self._operations = operations
        self._beside = SideStream(network.projection.weight.device)
        self._attention = PackedAttention.of(network)
        self._convs = [PackedConv.of(conv) for conv in network.input.convs if isinstance(conv, PositionConv)]
        self._turns = turns(MAX_FRAMES + pages.chunk_frames, network.config.dim_head, network.projection.weight.device)

    def velocity(self, inputs: Tensor, step: int, arrays: Mapping[str, Tensor]) -> Tensor:
        """inputs: [2 * rows, in_channels], the unconditioned half last; arrays: of the batch. Returns [2 * rows, bins]."""
        network, config = self._network, self._network.config
        tiles, stored = of_batch(arrays, self._pages)
        vectors = self._modulations[step]
        of_blocks = vectors[: -END_VECTORS * config.dim].view(config.depth, BLOCK_VECTORS, config.dim)
        projected = network.input.projection(inputs)
        x, delta, gate = projected.float(), self._positioned(projected, step, tiles), torch.ones_like(of_blocks[0, 0])
        stores = self._pages.context_of(step).flatten(1, 2)  # [blocks, 2 * pages, rows, dim]
        contexts = self._contexts(stores, stored)
        for number, (block, context) in enumerate(zip(network.blocks, contexts, strict=True)):
            assert isinstance(block, DitBlock)
            shift, scale, own_gate, shift_ff, scale_ff, next_gate = of_blocks[number].unbind(0)
            places = {"pages": stores[number], "line": tiles.line}
            x, normed = self._operations.advance(x, delta, gate=gate, shift=shift, scale=scale, **places)
            own = F.linear(normed, self._attention.weight[number], self._attention.bias[number])
            attended = self._operations.attend(own, context, self._turns, tiles, block.heads, 1.0 / math.sqrt(block.head_size))
            x, normed = self._operations.advance(x, block.to_out(attended), gate=own_gate, shift=shift_ff, scale=scale_ff)
            hidden = self._operations.linear_gelu(normed, block.linear_in.weight, block.linear_in.bias)
            delta, gate = block.linear_out(hidden), next_gate
        shift, scale = vectors[-END_VECTORS * config.dim :].chunk(2)[::-1]
        _, normed = self._operations.advance(x, delta, gate=gate, shift=shift, scale=scale)
        out: Tensor = network.projection(normed)
        return out

    def _positioned(self, x: Tensor, step: int, tiles: Tiles) -> Tensor:
        """What the position convolutions add to their input."""
        tails = self._pages.tail_of(step).flatten(0, 1)  # [2 * pages, history, all groups, channels of a group]
        for number, conv in enumerate(self._convs):
            tail = tails[:, :, number * DIT_CONV_GROUPS : (number + 1) * DIT_CONV_GROUPS]
            x = self._operations.convolve(x, tail, tiles, conv)
        return x

    def _contexts(self, stores: StateRows, stored: StoredSlots) -> Iterator[Tensor]:
        """Keys and values of what the batch reads, of each block."""
        project, weight, bias = self._operations.project_context, self._attention.context_weight, self._attention.context_bias
        first, rest = slice(0, 1), slice(1, None)
        if len(stored.page) > GUIDANCE_ROWS * FEW_PAGES:
            for number in range(len(stores)):
                this = slice(number, number + 1)
                yield project(stores[this], stored, weight[this], bias[this], self._turns)[0]
            return
        with self._beside:
            later = project(stores[rest], stored, weight[rest], bias[rest], self._turns)
        yield project(stores[first], stored, weight[first], bias[first], self._turns)[0]
        self._beside.join()
        yield from later
