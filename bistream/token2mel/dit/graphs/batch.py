"""A batch of spans as integers: which tile computes which chunk, what it reads and where its state goes. No torch.

The rows of a batch are the new frames of its spans, one span after another. The new part of a span is cut at its chunk boundaries; each
piece is a tile, the last one possibly an incomplete one.

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
CHUNKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # of rows, in the recorded batches
FEW_CHUNKS = 8
TILES_OF_A_CHUNK = 2  # of rows, at most: spans begin and end within chunks. Dead tiles cost little

Stored = tuple[int, int]  # a page, and the frame of the sequence with which it begins


@dataclass(frozen=True)
class BatchSize:
    """Capacity of one recorded call. rows: new frames. context: stored pages whose keys it can project."""

    rows: int
    tiles: int
    context: int

    def __str__(self) -> str:
        return f"{self.rows} frames that read {self.context} pages"

    def holds(self, other: BatchSize) -> bool:
        return self.rows >= other.rows and self.tiles >= other.tiles and self.context >= other.context


def batch_sizes(chunk: int, pages: int) -> list[BatchSize]:
    """Sizes to record where there are ``pages`` pages, cheapest first; the last one holds all that the others hold.

    Projecting takes time for the pages that a batch has, whatever its size, so there are two for few rows and one for many.

    chunk: its frames.
    """
    few, most = (min(count, pages) for count in (FEW_PAGES, MOST_PAGES))
    wanted = {(count, most) for count in CHUNKS} | {(count, few) for count in CHUNKS if count <= FEW_CHUNKS}
    sizes = [BatchSize(count * chunk, count * TILES_OF_A_CHUNK, context) for count, context in wanted]
    return sorted(sizes, key=lambda size: (size.context > FEW_PAGES, size.rows))


@dataclass(frozen=True)
class SlotLayout:
    """Sizes that all batches share, and what their arrays mean.

    chunk: frames of one, and of a complete tile. ratio: frames per token. left_context_chunks: how far attention reaches back; 0: no limit.
    """

    chunk: int
    ratio: int
    left_context_chunks: int

    @property
    def list_width(self) -> int:
        """Most slots that a tile can see."""
        longest = -(-MAX_FRAMES // self.chunk)
        return min(longest, self.left_context_chunks + 1) if self.left_context_chunks else longest

    def rows(self, span: Span) -> int:
        return span.length * self.ratio

    def tiles(self, span: Span) -> int:
        return -(-self.rows(span) // self.chunk)

    def stored(self, span: Span) -> list[Stored]:
        """The pages that a span reads. They stand directly before it, whatever its session has forgotten."""
        pages = span.context_pages[-self.left_context_chunks :] if self.left_context_chunks else span.context_pages
        first = span.start * self.ratio - len(pages) * self.chunk
        return [(page, first + number * self.chunk) for number, page in enumerate(pages)]

    def needs(self, spans: Sequence[Span]) -> BatchSize:
        """The least capacity that holds a batch."""
        pages = {page for span in spans for page in self.stored(span)}
        return BatchSize(sum(self.rows(span) for span in spans), sum(self.tiles(span) for span in spans), len(pages))

    def fits(self, span: Span, largest: BatchSize) -> bool:
        """Whether a batch can hold this span at all."""
        return span.streaming and largest.holds(self.needs([span]))

    def group(self, spans: Sequence[Span], largest: BatchSize) -> list[list[int]]:
        """Indices of spans, in order, in groups that ``largest`` holds; each of them alone must fit."""
        groups: list[list[int]] = []
        rows, tiles, pages = 0, 0, set[Stored]()
        for index, span in enumerate(spans):
            stored = set(self.stored(span))
            rows, tiles = rows + self.rows(span), tiles + self.tiles(span)
            if not groups or not largest.holds(BatchSize(rows, tiles, len(pages) + len(stored - pages))):
                groups.append([])
                rows, tiles, pages = self.rows(span), self.tiles(span), set()
            pages |= stored
            groups[-1].append(index)
        return groups

    def array_shapes(self, size: BatchSize) -> dict[str, tuple[int, ...]]:
        """Name and shape of every array of a batch of this capacity. Their meaning is in ``fill``."""
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("begin", "live", "start", "page", "last", "follows", "visible"), (size.tiles,))
        shapes |= {"context": (size.context,), "context_start": (size.context,), "used": (1,)}
        return shapes | {"lists": (size.tiles, self.list_width)} | dict.fromkeys(("noise", "line"), (size.rows,))

    def fill(self, arrays: dict[str, IntArray32], spans: Sequence[Span]) -> None:
        """Write a batch. Tiles after the last one are dead; rows after the last one belong to no tile.

        Of each tile, begin: its first row; live: its frames, 0 for a dead one; start: the frame of the sequence with which it begins; page:
        where its state goes, ``SCRATCH_PAGE`` where it is not kept; follows: 1 where the chunk before is the tile before, 0 where that is
        stored in the page ``last`` or absent; visible, lists: how many slots it sees, and which. context, context_start: the page in each
        slot, and its first frame; used: how many slots have one, the first ones. Of each row, noise: the frame of the sequence; line: where
        its state goes, counted in frames of all pages.
        """
        empty = (("begin", 0), ("live", 0), ("start", 0), ("page", SCRATCH_PAGE), ("last", ZERO_PAGE), ("follows", 0), ("visible", 0))
        rest = (("context", ZERO_PAGE), ("context_start", 0), ("noise", 0), ("line", SCRATCH_PAGE * self.chunk))
        for name, value in (*empty, *rest):
            arrays[name].fill(value)
        slots: dict[Stored, int] = {}
        row, tile, own = 0, 0, len(arrays["context"])
        for span in spans:
            count = self.tiles(span)
            self._fill_tiles(arrays, row, tile, span)
            read = [slots.setdefault(page, len(slots)) for page in self.stored(span)]
            self._fill_lists(arrays, tile, read, range(own + tile, own + tile + count))
            row, tile = row + self.rows(span), tile + count
        for (page, first), slot in slots.items():
            arrays["context"][slot], arrays["context_start"][slot] = page, first
        arrays["used"][0] = len(slots)

    def _fill_tiles(self, arrays: dict[str, IntArray32], first_row: int, tile: int, span: Span) -> None:
        """All of the tiles and rows of one span but what its tiles see. tile: the first of them."""
        count, length, start = self.tiles(span), self.rows(span), span.start * self.ratio
        first, frame = np.arange(count) * self.chunk, np.arange(length)
        tiles, rows = slice(tile, tile + count), slice(first_row, first_row + length)
        arrays["begin"][tiles] = first_row + first
        arrays["live"][tiles] = np.minimum(self.chunk, length - first)
        arrays["start"][tiles] = start + first
        arrays["page"][tile : tile + len(span.keep_pages)] = span.keep_pages
        arrays["last"][tile] = (ZERO_PAGE, *span.context_pages)[-1]
        arrays["follows"][tile + 1 : tile + count] = 1
        arrays["noise"][rows] = np.minimum(start + frame, MAX_FRAMES - 1)
        arrays["line"][rows] = arrays["page"][tile + frame // self.chunk] * self.chunk + frame % self.chunk

    def _fill_lists(self, arrays: dict[str, IntArray32], tile: int, stored: Sequence[int], own: Sequence[int]) -> None:
        """What the tiles of one span see: the stored pages, and the span's own up to the tile itself."""
        everything = np.array([*stored, *own], np.int32)
        for number in range(len(own)):
            end = len(stored) + number + 1
            begin = max(0, end - self.list_width)
            arrays["visible"][tile + number] = end - begin
            arrays["lists"][tile + number, : end - begin] = everything[begin:end]
