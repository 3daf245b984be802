"""What attention of the DiT's tiles sees: slots, which hold keys and values as their projections leave them, first those of stored pages,
then those of the tiles themselves, which lie beside their queries. ``cuda`` has the kernels.

Positions are turned there, as ``dit.estimator.rotate`` does: the first channels, as many as a head has, of queries and keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bistream.token2mel.dit.estimator import rotation


@dataclass(frozen=True)
class Slots:
    """What a batch reads and its tiles see, of both guidance halves: all that is stored, then all tiles.

    page: int64 [2 * stored], of stored pages; used: int32 [1], how many of each half the batch reads, the first ones.
    start, live: int32 [slots], position of a slot's first frame, and how many of its frames are keys. visible: int32 [tiles], how many
    slots a tile sees; lists: int32 [tiles, longest], which, those of tiles last.
    """

    page: Tensor
    used: Tensor
    start: Tensor
    live: Tensor
    visible: Tensor
    lists: Tensor


def turns(positions: int, head_size: int, device: torch.device) -> Tensor:
    """Cosines and sines of the rotation at positions from 0 on, float32 [2, positions, head_size / 2]."""
    (angles,) = rotation(torch.zeros(1, dtype=torch.int64, device=device), positions, head_size)
    return torch.stack([angles.cos(), angles.sin()])
