"""A batch of spans as integers: which tile computes which chunk, what it reads and where its state goes. No torch.

The new part of each sequence is cut at its chunk boundaries; each piece is one tile of the packed rows, padded to the rows of a
page. So a tile of queries is a page of keys, and storing state is copying whole tiles. Padding repeats the tile's last frame:
ordinary values, which are never read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bistream.checkpoint_config import FlowConfig
from bistream.token2mel.batching import Span
from bistream.token2mel.checks import MAX_FRAMES
from bistream.token2mel.page_pool import SCRATCH_PAGE, ZERO_PAGE

IntArray32 = NDArray[np.int32]

PAGE_ROWS_STEP = 64  # a page is a whole number of attention blocks
MAX_SCRATCH_PAGES = 64  # the incomplete last chunks of as many sessions; 38 MB each at full size, 2.4 GB in all
MIN_SCRATCH_PAGES = 2
_SCRATCH_SHARE = 8  # pages per scratch page
_PAGES_STEP = 32


def rows_per_page(config: FlowConfig) -> int:
    """Rows of a tile and of a page of block inputs; the first ``static_chunk_size`` of them hold frames."""
    return -(-config.estimator.static_chunk_size // PAGE_ROWS_STEP) * PAGE_ROWS_STEP


def whole_pages(pages: int) -> int:
    """``pages`` rounded down, so that starts with slightly different free memory agree: kernels are compiled for the number."""
    return pages - pages % _PAGES_STEP if pages >= 10 * _PAGES_STEP else pages


def scratch_page_count(pages: int) -> int:
    """How many of ``pages`` are set aside for chunks that are only needed while a batch runs."""
    return max(MIN_SCRATCH_PAGES, min(MAX_SCRATCH_PAGES, pages // _SCRATCH_SHARE))


@dataclass(frozen=True)
class Layout:
    """Sizes that all batches share. chunk: frames of one. rows: of a tile. list_width: most pages that a tile can see.

    scratch_pages: of one batch. left_context_chunks: how far attention reaches back; 0: no limit.
    """

    chunk: int
    rows: int
    ratio: int
    scratch_pages: range
    left_context_chunks: int

    @property
    def list_width(self) -> int:
        longest = -(-MAX_FRAMES // self.chunk)
        return min(longest, self.left_context_chunks + 1) if self.left_context_chunks else longest

    def tiles(self, span: Span) -> int:
        return -(-span.length * self.ratio // self.chunk)

    def scratch(self, span: Span) -> int:
        """Scratch pages that a span needs: its chunks that no page keeps."""
        return self.tiles(span) - sum(page != SCRATCH_PAGE for page in span.keep_pages)


def group(spans: Sequence[Span], layout: Layout, max_tiles: int) -> list[list[int]]:
    """Indices of spans, in order, in groups of at most ``max_tiles`` tiles that have enough scratch pages."""
    groups: list[list[int]] = []
    tiles = scratch = 0
    for index, span in enumerate(spans):
        tiles, scratch = tiles + layout.tiles(span), scratch + layout.scratch(span)
        if not groups or tiles > max_tiles or scratch > len(layout.scratch_pages):
            groups.append([])
            tiles, scratch = layout.tiles(span), layout.scratch(span)
        groups[-1].append(index)
    return groups


def array_shapes(tiles: int, layout: Layout) -> dict[str, tuple[int, ...]]:
    """Name and shape of every array of a batch of at most ``tiles`` tiles. Their meaning is in ``fill``."""
    return {
        "live": (tiles,),
        "page": (tiles,),
        "last": (tiles,),
        "previous": (tiles,),
        "visible": (tiles,),
        "lists": (tiles, layout.list_width),
        "scratch_live": (len(layout.scratch_pages),),
        "noise": (tiles, layout.rows),
        "condition": (tiles, layout.rows),
    }


def fill(arrays: dict[str, IntArray32], spans: Sequence[Span], first_conditions: Sequence[int], layout: Layout) -> None:
    """Write a batch; tiles after the last one are dead: they see no key and store to ``SCRATCH_PAGE``.

    first_conditions: row of each span's first frame among the conditions of the batch.

    live: frames of the tile, 0 for a dead one. page: where its state goes. previous: the tile of the chunk before, -1 where that is
    stored or absent; last: the page of it then. visible, lists: how many pages the tile sees, and which. scratch_live: live rows of
    each scratch page. noise, condition: of each row, the frame of the sequence and the row of the conditions.
    """
    for name, value in (("live", 0), ("page", SCRATCH_PAGE), ("last", ZERO_PAGE), ("previous", -1), ("visible", 0)):
        arrays[name].fill(value)
    tile = scratch = 0
    row = np.arange(layout.rows)
    for span, first in zip(spans, first_conditions, strict=True):
        frames, count = span.length * layout.ratio, layout.tiles(span)
        chunks = slice(tile, tile + count)
        live = np.minimum(layout.chunk, frames - np.arange(count) * layout.chunk)
        pages = [page for page in span.keep_pages] + [SCRATCH_PAGE] * (count - len(span.keep_pages))
        for number, page in enumerate(pages):
            if page == SCRATCH_PAGE:
                pages[number] = layout.scratch_pages[scratch]
                arrays["scratch_live"][scratch] = live[number]
                scratch += 1
        arrays["live"][chunks] = live
        arrays["page"][chunks] = pages
        arrays["last"][tile] = (ZERO_PAGE, *span.context_pages)[-1]
        arrays["previous"][tile + 1 : tile + count] = np.arange(tile, tile + count - 1)
        _fill_lists(arrays, tile, span.context_pages, pages, layout)
        frame = np.arange(count)[:, None] * layout.chunk + np.minimum(row, live[:, None] - 1)
        arrays["noise"][chunks] = np.minimum(span.start * layout.ratio + frame, MAX_FRAMES - 1)
        arrays["condition"][chunks] = first + frame
        tile += count


def _fill_lists(arrays: dict[str, IntArray32], tile: int, stored: Sequence[int], pages: Sequence[int], layout: Layout) -> None:
    """Pages that the tiles of one span see: the stored ones, and the span's own up to the tile itself."""
    everything = np.array([*stored, *pages], np.int32)
    for number in range(len(pages)):
        end = len(stored) + number + 1
        begin = max(0, end - layout.list_width)
        arrays["visible"][tile + number] = end - begin
        arrays["lists"][tile + number, : end - begin] = everything[begin:end]


def output_rows(spans: Sequence[Span], layout: Layout) -> NDArray[np.int64]:
    """Packed row of each frame of all spans, one span after another."""
    found, tile = [], 0
    for span in spans:
        frame = np.arange(span.length * layout.ratio)
        found.append((tile + frame // layout.chunk) * layout.rows + frame % layout.chunk)
        tile += layout.tiles(span)
    return np.concatenate(found)
