"""Attention of the DiT's tiles over slots, which hold keys and values as their projection leaves them, [slots, frames, keys | values].

Positions are turned here, as ``dit.estimator.rotate`` does: the first channels, as many as a head has, of queries and keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bistream.token2mel.dit.estimator import rotation
from bistream.token2mel.graphs.attention import attend_gathered


@dataclass(frozen=True)
class Slots:
    """What tiles see; the tiles' own slots are the last ones, in their order.

    start, live: int32 [slots], position of a slot's first frame, and how many of its frames are keys. visible: int32 [tiles], how many
    slots a tile sees; lists: int32 [tiles, longest], which.
    """

    start: Tensor
    live: Tensor
    visible: Tensor
    lists: Tensor


def turns(positions: int, head_size: int, device: torch.device) -> Tensor:
    """Cosines and sines of the rotation at positions from 0 on, float32 [2, positions, head_size / 2]."""
    (angles,) = rotation(torch.zeros(1, dtype=torch.int64, device=device), positions, head_size)
    return torch.stack([angles.cos(), angles.sin()])


def attend_projected(query: Tensor, projected: Tensor, table: Tensor, slots: Slots, heads: int, scale: float) -> Tensor:
    """query: [tiles, frames, heads * width]; the result has its shape. Zeros for a tile that sees nothing. table: of ``turns``."""
    key, value = projected.chunk(2, dim=2)
    own = slots.start[len(slots.start) - len(query) :]
    key, query = (_turned(x, table, start) for x, start in ((key, slots.start), (query, own)))
    return attend_gathered(query, key, value, slots.visible, slots.lists, slots.live, heads, scale)


def _turned(x: Tensor, table: Tensor, start: Tensor) -> Tensor:
    positions = start[:, None].long() + torch.arange(x.shape[1], device=x.device)
    cosine, sine = table[:, positions]
    width = 2 * cosine.shape[2]
    even, odd = x[:, :, 0:width:2].float(), x[:, :, 1:width:2].float()
    turned = torch.stack([even * cosine - odd * sine, odd * cosine + even * sine], dim=-1).flatten(-2)
    return torch.cat([turned.to(x.dtype), x[:, :, width:]], dim=-1)
