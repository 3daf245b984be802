"""A batch on the device: the tiles of both guidance halves, and the stored pages that they see. See ``SlotLayout.fill``.

Attention of the tiles sees slots, which hold keys and values as their projections leave them, first those of stored pages, then those of
the tiles themselves, which lie beside their queries. ``cuda`` has the kernels. Positions are turned there, as ``dit.estimator.rotate``
does: the first channels, as many as a head has, of queries and keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bistream.token2mel.dit.estimator import rotation
from bistream.token2mel.dit.pages import DitPages
from bistream.token2mel.pages import GUIDANCE_ROWS


@dataclass(frozen=True)
class Tiles:
    """Those of the first half, then those of the second, whose rows and pages come after the first's.

    frames: of a complete tile. begin, live, start, follows: int32 [tiles], a tile's first row, the number of its rows, its position, and
    whether the tile before is the chunk before. last, page: int64 [tiles], the page of the chunk before where it is stored, and that of the
    tile. line: int64 [rows], each row's place among the frames of all pages. visible: int32 [tiles], how many slots a tile sees; lists:
    int32 [tiles, longest], which, those of tiles last.
    """

    frames: int
    begin: Tensor
    live: Tensor
    start: Tensor
    follows: Tensor
    last: Tensor
    page: Tensor
    line: Tensor
    visible: Tensor
    lists: Tensor


@dataclass(frozen=True)
class StoredSlots:
    """page: int64 [slots], in each half the same number; used: int32 [1], how many of each half the batch reads, the first ones. start:
    int32 [slots], position of a page's first frame."""

    page: Tensor
    used: Tensor
    start: Tensor


def of_batch(arrays: Mapping[str, Tensor], pages: DitPages) -> tuple[Tiles, StoredSlots]:
    """What the steps of one batch have in common, made from its arrays with a few small kernels."""
    frames, total = pages.chunk_frames, pages.tail.values.shape[2]
    tiles, rows, stored, number = len(arrays["live"]), len(arrays["line"]), len(arrays["context"]), arrays["lists"]
    moved = [(half * stored, (GUIDANCE_ROWS - 1) * stored + half * tiles) for half in range(GUIDANCE_ROWS)]
    return Tiles(
        frames,
        begin=_halves(arrays["begin"], rows),
        last=_halves(arrays["last"].long(), total),
        page=_halves(arrays["page"].long(), total),
        line=_halves(arrays["line"].long(), total * frames),
        lists=torch.cat([number + torch.where(number < stored, of_page, of_tile) for of_page, of_tile in moved]),
        **{name: arrays[name].repeat(GUIDANCE_ROWS) for name in ("live", "start", "follows", "visible")},
    ), StoredSlots(_halves(arrays["context"].long(), total), arrays["used"], arrays["context_start"].repeat(GUIDANCE_ROWS))


def turns(positions: int, head_size: int, device: torch.device) -> Tensor:
    """Cosines and sines of the rotation at positions from 0 on, float32 [2, positions, head_size / 2]."""
    (angles,) = rotation(torch.zeros(1, dtype=torch.int64, device=device), positions, head_size)
    return torch.stack([angles.cos(), angles.sin()])


def _halves(index: Tensor, offset: int) -> Tensor:
    """An index for the first half, followed by that for the second, ``offset`` further."""
    return torch.cat([index + half * offset for half in range(GUIDANCE_ROWS)])
