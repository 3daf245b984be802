"""The DiT over packed tiles: the launches that a graph records. The arithmetic is that of ``dit.estimator.Dit``.

Tiles have a chunk's frames, as the stored pages; only in the attention, whose blocks are larger, a tile has ``page_rows`` rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bistream.token2mel.dit.estimator import BLOCK_VECTORS, CONV_GROUPS, END_VECTORS, Dit, DitBlock, PositionConv, rotation
from bistream.token2mel.dit.pages import DitPages
from bistream.token2mel.graphs.dit_operations import DitOperations
from bistream.token2mel.graphs.solver import halves
from bistream.token2mel.pages import GUIDANCE_ROWS


@dataclass(frozen=True)
class Workspace:
    """Keys and values of one block, [2 * slots, page_rows, width]; see ``dit_batch``. Rows that nobody writes are zeros."""

    keys: Tensor
    values: Tensor
    context_slots: int

    @classmethod
    def of(cls, network: Dit, context_slots: int, tiles: int, page_rows: int) -> Workspace:
        like, width = network.projection.weight, network.config.heads * network.config.dim_head
        shape = (GUIDANCE_ROWS * (context_slots + tiles), page_rows, width)
        return cls(like.new_zeros(shape), like.new_zeros(shape), context_slots)


@dataclass(frozen=True)
class DitBatch:
    """Both guidance halves of a batch, made from its arrays (``SlotLayout.fill``).

    slot: where keys go, of the context's pages and then of the tiles, and slot_live: int32 [2 * slots], how many rows of each are keys.
    cosine, sine: float32 [tiles, rows, n], and key_cosine, key_sine the same of ``slot``'s rows: the rotation of head 0.
    """

    previous: Tensor
    last: Tensor
    page: Tensor
    context: Tensor
    slot: Tensor
    slot_live: Tensor
    visible: Tensor
    lists: Tensor
    cosine: Tensor
    sine: Tensor
    key_cosine: Tensor
    key_sine: Tensor


class PackedDit:
    """``solver.PackedNetwork`` of the DiT. modulations: float32 [steps, ``modulation_size``]."""

    def __init__(self, network: Dit, modulations: Tensor, pages: DitPages, workspace: Workspace, operations: DitOperations) -> None:
        self._network = network
        self._modulations = modulations
        self._pages = pages
        self._workspace = workspace
        self._operations = operations

    def prepare(self, arrays: Mapping[str, Tensor]) -> DitBatch:
        pages, work = self._pages, self._workspace
        chunk, total = pages.chunk_frames, pages.context.shape[3]
        tiles, stored = len(arrays["live"]), len(arrays["context"])
        device, slots = work.keys.device, len(work.keys) // GUIDANCE_ROWS
        slot_live = torch.full((slots,), chunk, dtype=torch.int32, device=device)
        slot_live[work.context_slots : work.context_slots + tiles] = arrays["live"]
        own = torch.arange(work.context_slots, work.context_slots + tiles, device=device)
        context_slot = torch.arange(stored, device=device)
        head_size = self._network.config.dim_head
        angles, stored_angles = (rotation(arrays[name].long(), chunk, head_size).repeat(2, 1, 1) for name in ("start", "context_start"))
        key_angles = torch.cat([stored_angles, angles])
        previous = arrays["previous"].long()
        return DitBatch(
            previous=torch.cat([torch.where(previous >= 0, previous + half * tiles, -1) for half in range(GUIDANCE_ROWS)]),
            last=halves(arrays["last"].long(), total),
            page=halves(arrays["page"].long(), total),
            context=halves(arrays["context"].long(), total),
            slot=torch.cat([halves(context_slot, slots), halves(own, slots)]),
            slot_live=slot_live.repeat(GUIDANCE_ROWS),
            visible=arrays["visible"].repeat(GUIDANCE_ROWS),
            lists=halves(arrays["lists"], slots),
            cosine=angles.cos(),
            sine=angles.sin(),
            key_cosine=key_angles.cos(),
            key_sine=key_angles.sin(),
        )

    def velocity(self, inputs: Tensor, step: int, batch: DitBatch) -> Tensor:
        network, config = self._network, self._network.config
        vectors = self._modulations[step]
        of_blocks = vectors[: -END_VECTORS * config.dim].view(config.depth, BLOCK_VECTORS, config.dim)
        scale, shift = vectors[-END_VECTORS * config.dim :].chunk(2)
        projected = network.input.projection(inputs)
        x, delta, gate = projected.float(), self._positioned(projected, step, batch), torch.ones_like(shift)
        stores = self._pages.context[step].flatten(1, 2)  # of each block: [2 * pages, rows, width]
        for block, store, of_block in zip(network.blocks, stores, of_blocks, strict=True):
            assert isinstance(block, DitBlock)
            x, delta = self._transform(block, x, delta, gate, store, of_block, batch)
            gate = of_block[-1]
        _, normed = self._operations.advance(x, delta, gate=gate, shift=shift, scale=scale)
        out: Tensor = network.projection(normed)
        return out

    def _positioned(self, x: Tensor, step: int, batch: DitBatch) -> Tensor:
        """What the position convolutions add to their input."""
        pages, convs = self._pages, self._network.input.convs
        tails = pages.tail[step].flatten(0, 1)  # [2 * pages, history, channels of both]
        places = {"chunk": pages.chunk_frames, "history": pages.conv_history}
        for conv, tail in zip(convs, tails.chunk(len(convs), dim=2), strict=True):
            assert isinstance(conv, PositionConv)
            extended = self._operations.extend_left(x, tail, batch.previous, batch.last, batch.page, **places)
            x = F.mish(F.conv1d(extended, conv.weight, conv.bias, groups=CONV_GROUPS)).transpose(1, 2).contiguous()
        return x  # contiguous as other inputs of the operations, which are compiled for strides

    def _transform(
        self, block: DitBlock, x: Tensor, delta: Tensor, gate: Tensor, store: Tensor, vectors: Tensor, batch: DitBatch
    ) -> tuple[Tensor, Tensor]:
        """One block. x: the residual stream, float32, which lacks ``gate * delta``; so does the result, with the last of ``vectors``."""
        operations, work, rows = self._operations, self._workspace, self._workspace.keys.shape[1]
        shift, scale, own_gate, shift_ff, scale_ff, _ = vectors.unbind(0)
        x, normed, seen = operations.advance_and_keep(x, delta, store, batch.page, batch.context, gate=gate, shift=shift, scale=scale)
        operations.place_keys(block.to_keys_values(seen), batch.key_cosine, batch.key_sine, batch.slot, work.keys, work.values)
        query = operations.rotate_query(block.to_query(normed), batch.cosine, batch.sine, rows=rows)
        sizes = (block.heads, 1.0 / math.sqrt(block.head_size))
        attended = operations.attend(query, work.keys, work.values, batch.visible, batch.lists, batch.slot_live, *sizes)
        delta = block.to_out(attended[:, : x.shape[1]])
        x, normed = operations.advance(x, delta, gate=own_gate, shift=shift_ff, scale=scale_ff)
        return x, block.linear_out(F.gelu(block.linear_in(normed), approximate="tanh"))
