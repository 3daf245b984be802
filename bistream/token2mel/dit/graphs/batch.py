"""A batch of spans as integers: which tile computes which chunk, what it reads and where its state goes. No torch.

The new part of each sequence is cut at its chunk boundaries; each piece is one tile of the packed rows. Padding of an incomplete tile
repeats its last frame: ordinary values, which are never read.

Keys and values are projected anew in every call, from stored pages (``dit.pages``) and from the batch's own tiles, to slots: first those of
stored pages, as many as the batch has room for, then one for each tile. A page that several sessions read at the same place, such as one of
their voice, has one slot. So attention sees slots, and no chunk needs a page to be attended to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bistream.token2mel.batching import Span
from bistream.token2mel.checks import MAX_FRAMES
from bistream.token2mel.page_pool import SCRATCH_PAGE, ZERO_PAGE

IntArray32 = NDArray[np.int32]

FEW_PAGES = 32  # stored pages of one batch, whose keys and values of all blocks are made at once: 0.3 GB at full size
MOST_PAGES = 1024  # of any batch; 0.4 GB for the keys and values of one block
FEW_TILES = 8

Stored = tuple[int, int]  # a page, and the frame of the sequence with which it begins


@dataclass(frozen=True)
class BatchSize:
    """Capacity of one recorded call. context: stored pages whose keys it can project."""

    tiles: int
    context: int

    def __str__(self) -> str:
        return f"{self.tiles} chunks that read {self.context} pages"

    def holds(self, other: BatchSize) -> bool:
        return self.tiles >= other.tiles and self.context >= other.context


def batch_sizes(tiles: Sequence[int], pages: int) -> list[BatchSize]:
    """Sizes to record where there are ``pages`` pages, cheapest first; the last one holds all that the others hold.

    Projecting takes time for the pages that a batch has, whatever its size, so there are two for few tiles and one for many.
    """
    few, most = (min(count, pages) for count in (FEW_PAGES, MOST_PAGES))
    sizes = {BatchSize(count, most) for count in tiles} | {BatchSize(count, few) for count in tiles if count <= FEW_TILES}
    return sorted(sizes, key=lambda size: (size.context > FEW_PAGES, size.tiles))


@dataclass(frozen=True)
class SlotLayout:
    """Sizes that all batches share, and what their arrays mean.

    chunk: frames of one, and rows of a tile. ratio: frames per token. left_context_chunks: how far attention reaches back; 0: no limit.
    """

    chunk: int
    ratio: int
    left_context_chunks: int

    @property
    def list_width(self) -> int:
        """Most slots that a tile can see."""
        longest = -(-MAX_FRAMES // self.chunk)
        return min(longest, self.left_context_chunks + 1) if self.left_context_chunks else longest

    def tiles(self, span: Span) -> int:
        return -(-span.length * self.ratio // self.chunk)

    def stored(self, span: Span) -> list[Stored]:
        """The pages that a span reads. They stand directly before it, whatever its session has forgotten."""
        pages = span.context_pages[-self.left_context_chunks :] if self.left_context_chunks else span.context_pages
        first = span.start * self.ratio - len(pages) * self.chunk
        return [(page, first + number * self.chunk) for number, page in enumerate(pages)]

    def needs(self, spans: Sequence[Span]) -> BatchSize:
        """The least capacity that holds a batch."""
        pages = {page for span in spans for page in self.stored(span)}
        return BatchSize(sum(self.tiles(span) for span in spans), len(pages))

    def fits(self, span: Span, largest: BatchSize) -> bool:
        """Whether a batch can hold this span at all."""
        return span.streaming and largest.holds(self.needs([span]))

    def group(self, spans: Sequence[Span], largest: BatchSize) -> list[list[int]]:
        """Indices of spans, in order, in groups that ``largest`` holds; each of them alone must fit."""
        groups: list[list[int]] = []
        tiles, pages = 0, set[Stored]()
        for index, span in enumerate(spans):
            stored = self.stored(span)
            tiles += self.tiles(span)
            new = sum(page not in pages for page in stored)
            if not groups or tiles > largest.tiles or len(pages) + new > largest.context:
                groups.append([])
                tiles, pages = self.tiles(span), set()
            pages.update(stored)
            groups[-1].append(index)
        return groups

    def array_shapes(self, size: BatchSize) -> dict[str, tuple[int, ...]]:
        """Name and shape of every array of a batch of this capacity. Their meaning is in ``fill``."""
        tiles = size.tiles
        shapes: dict[str, tuple[int, ...]] = {name: (tiles,) for name in ("live", "start", "page", "last", "previous", "visible")}
        shapes |= {"context": (size.context,), "context_start": (size.context,), "used": (1,)}
        return shapes | {"lists": (tiles, self.list_width), "noise": (tiles, self.chunk), "condition": (tiles, self.chunk)}

    def fill(self, arrays: dict[str, IntArray32], spans: Sequence[Span], first_conditions: Sequence[int]) -> None:
        """Write a batch; tiles after the last one are dead: they see no key and store to ``SCRATCH_PAGE``.

        first_conditions: row of each span's first frame among the conditions of the batch.

        live: frames of the tile, 0 for a dead one. start: the frame of the sequence with which it begins. page: where its state goes,
        ``SCRATCH_PAGE`` where it is not kept. previous: the tile of the chunk before, -1 where that is stored or absent; last: the page of
        it then. context, context_start: the page in each slot, and its first frame; used: how many slots have one, the first ones. visible,
        lists: how many slots the tile sees, and which. noise, condition: of each row, the frame of the sequence and the row of the
        conditions.
        """
        empty = (("live", 0), ("start", 0), ("page", SCRATCH_PAGE), ("last", ZERO_PAGE), ("previous", -1), ("visible", 0))
        for name, value in (*empty, ("context", ZERO_PAGE), ("context_start", 0)):
            arrays[name].fill(value)
        slots: dict[Stored, int] = {}
        tile, own = 0, len(arrays["context"])
        for span, first in zip(spans, first_conditions, strict=True):
            count = self.tiles(span)
            self._fill_tiles(arrays, tile, span, first)
            read = [slots.setdefault(page, len(slots)) for page in self.stored(span)]
            self._fill_lists(arrays, tile, read, range(own + tile, own + tile + count))
            tile += count
        for (page, first), slot in slots.items():
            arrays["context"][slot], arrays["context_start"][slot] = page, first
        arrays["used"][0] = len(slots)

    def _fill_tiles(self, arrays: dict[str, IntArray32], tile: int, span: Span, first_condition: int) -> None:
        """All of the tiles of one span but what they see. tile: the first of them."""
        count = self.tiles(span)
        number, row = np.arange(count), np.arange(self.chunk)
        tiles = slice(tile, tile + count)
        live = np.minimum(self.chunk, span.length * self.ratio - number * self.chunk)
        frame = number[:, None] * self.chunk + np.minimum(row, live[:, None] - 1)
        arrays["live"][tiles] = live
        arrays["start"][tiles] = span.start * self.ratio + number * self.chunk
        arrays["page"][tile : tile + len(span.keep_pages)] = span.keep_pages
        arrays["last"][tile] = (ZERO_PAGE, *span.context_pages)[-1]
        arrays["previous"][tile + 1 : tile + count] = np.arange(tile, tile + count - 1)
        arrays["noise"][tiles] = np.minimum(span.start * self.ratio + frame, MAX_FRAMES - 1)
        arrays["condition"][tiles] = first_condition + frame

    def _fill_lists(self, arrays: dict[str, IntArray32], tile: int, stored: Sequence[int], own: Sequence[int]) -> None:
        """What the tiles of one span see: the stored pages, and the span's own up to the tile itself."""
        everything = np.array([*stored, *own], np.int32)
        for number in range(len(own)):
            end = len(stored) + number + 1
            begin = max(0, end - self.list_width)
            arrays["visible"][tile + number] = end - begin
            arrays["lists"][tile + number, : end - begin] = everything[begin:end]


def output_rows(spans: Sequence[Span], layout: SlotLayout) -> NDArray[np.int64]:
    """Packed row of each frame of all spans, one span after another."""
    found, tile = [], 0
    for span in spans:
        frame = np.arange(span.length * layout.ratio)
        found.append((tile + frame // layout.chunk) * layout.chunk + frame % layout.chunk)
        tile += layout.tiles(span)
    return np.concatenate(found)
