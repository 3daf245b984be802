"""The persistent attention over pages against float64: any number of programs, ragged sessions, bounded context, nothing else written."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs a Hopper GPU", allow_module_level=True)

from bistream.token2mel.cuda.kernels_attention_many import attend_pages_large

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

WIDTH, HEADS, CHUNK, TABLE, FRAMES, KEYS = 256, 8, 50, 40, 16, 64
ROWS = 1024  # of a half
NEW_FRAMES = [36, 50, 120, 2, 1, 17, 80, 100, 49, 9, 8, 16, 128]
STORED_CHUNKS = [0, 3, 5, 1, 0, 7, 2, 4, 11, 30, 0, 13, 2]
SCALE = math.log2(math.e) / 8.0


@dataclass(frozen=True)
class Batch:
    query: Tensor
    fresh: Tensor
    pages: Tensor
    session: np.ndarray[Any, np.dtype[np.int32]]
    table: np.ndarray[Any, np.dtype[np.int32]]


def random_batch(dtype: torch.dtype) -> Batch:
    generator = torch.Generator(device="cuda").manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, device="cuda", generator=generator).to(dtype)

    count = sum(STORED_CHUNKS)
    table = np.zeros((len(NEW_FRAMES), TABLE), np.int32)
    pages = np.random.default_rng(0).permutation(count + 5)[:count]
    for row, (first, chunks) in enumerate(zip(np.cumsum(STORED_CHUNKS) - STORED_CHUNKS, STORED_CHUNKS, strict=True)):
        table[row, :chunks] = pages[first : first + chunks]
    session = np.stack([np.cumsum(NEW_FRAMES) - NEW_FRAMES, NEW_FRAMES, STORED_CHUNKS], axis=1).astype(np.int32)
    return Batch(0.5 * draw(2 * ROWS, HEADS, WIDTH), draw(2 * ROWS, WIDTH), draw(2, count + 5, CHUNK, WIDTH), session, table)


def exact(batch: Batch, left: int) -> Tensor:
    """float64 [2 ROWS, HEADS, WIDTH]; NaN after the live rows."""
    out = torch.full((2 * ROWS, HEADS, WIDTH), math.nan, dtype=torch.float64, device="cuda")
    for (first, frames, chunks), table in zip(batch.session.tolist(), batch.table, strict=True):
        chunk = chunks + torch.arange(frames, device="cuda") // CHUNK
        of_key = torch.arange(chunks * CHUNK + frames, device="cuda") // CHUNK
        visible = of_key[None] <= chunk[:, None]
        if left:
            visible &= of_key[None] >= chunk[:, None] - left
        stored = torch.from_numpy(table[:chunks]).cuda().long()
        for half in (0, 1):
            rows = slice(half * ROWS + first, half * ROWS + first + frames)
            keys = torch.cat([batch.pages[half][stored].reshape(-1, WIDTH), batch.fresh[rows]]).double()
            scores = torch.einsum("fhw,kw->fhk", batch.query[rows].double(), keys) / 8.0
            out[rows] = torch.softmax(scores.masked_fill(~visible[:, None], -math.inf), dim=-1) @ keys
    return out


def attended(batch: Batch, left: int, programs: int) -> Tensor:
    tiles = [(number, first) for number, frames in enumerate(NEW_FRAMES) for first in range(0, frames, FRAMES)]
    listed = torch.tensor([len(tiles), *(number for tile in tiles for number in tile), *[7] * 20], dtype=torch.int32, device="cuda")
    out = torch.full_like(batch.query, math.nan)
    attend_pages_large[(programs, 2)](
        batch.query, batch.fresh, batch.pages, batch.pages.stride(0), listed, torch.from_numpy(batch.session).cuda(),
        torch.from_numpy(batch.table).cuda(), out, SCALE,
        rows=ROWS, WIDTH=WIDTH, HEADS=HEADS, CHUNK=CHUNK, TABLE=TABLE, LEFT=left, FRAMES=FRAMES, KEYS=KEYS, num_warps=4,
    )  # fmt: skip
    return out


@pytest.mark.parametrize("left", [0, 2])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 1e-3), (torch.bfloat16, 8e-3)], ids=["float16", "bfloat16"])
def test_any_number_of_programs_attends_exactly(dtype: torch.dtype, tolerance: float, left: int) -> None:
    batch = random_batch(dtype)
    wanted = exact(batch, left)
    live = wanted.isfinite()
    first = attended(batch, left, 66)
    assert torch.equal(first.isfinite(), live)  # every live row is written and no others
    error = (first.double() - wanted)[live].norm() / wanted[live].norm()
    assert error < tolerance
    for programs in (1, 3, 200):
        again = attended(batch, left, programs)
        assert torch.equal(again[live], first[live]) and torch.equal(again.isfinite(), live)
