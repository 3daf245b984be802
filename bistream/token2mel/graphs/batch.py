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

from bistream.checkpoints.config import FlowConfig
from bistream.token2mel.batching import Span
from bistream.token2mel.checks import MAX_FRAMES
from bistream.token2mel.page_pool import SCRATCH_PAGE, ZERO_PAGE

IntArray32 = NDArray[np.int32]

PAGE_ROWS_STEP = 64  # a page is a whole number of attention blocks
MAX_SCRATCH_PAGES = 64  # the incomplete last chunks of as many sessions; 38 MB each at full size, 2.4 GB in all
MIN_SCRATCH_PAGES = 2
_SCRATCH_SHARE = 8  # pages per scratch page
_PAGES_STEP = 32


def rows_of(chunk: int) -> int:
    """Rows of a page that the attention reads and that holds ``chunk`` frames."""
    return -(-chunk // PAGE_ROWS_STEP) * PAGE_ROWS_STEP


def rows_per_page(config: FlowConfig) -> int:
    """Rows of a tile and of a page of the U-Net's block inputs; the first ``static_chunk_size`` of them hold frames."""
    return rows_of(config.estimator.static_chunk_size)


def whole_pages(pages: int) -> int:
    """``pages`` rounded down, so that starts with slightly different free memory agree: kernels are compiled for the number."""
    return pages - pages % _PAGES_STEP if pages >= 10 * _PAGES_STEP else pages


def scratch_page_count(pages: int) -> int:
    """How many of ``pages`` are set aside for chunks that are only needed while a batch runs."""
    return max(MIN_SCRATCH_PAGES, min(MAX_SCRATCH_PAGES, pages // _SCRATCH_SHARE))


@dataclass(frozen=True)
class BatchSize:
    """Capacity of one recorded call. context: stored pages whose keys it can project; 0 where the pages are keys themselves."""

    tiles: int
    context: int = 0

    def __str__(self) -> str:
        return f"{self.tiles} chunks" + (f" that read {self.context} pages" if self.context else "")

    def holds(self, other: BatchSize) -> bool:
        return self.tiles >= other.tiles and self.context >= other.context


@dataclass(frozen=True)
class TileLayout:
    """Sizes that all batches of both flows share, and what the arrays of both mean.

    chunk: frames of one. rows: of a tile. ratio: frames per token. left_context_chunks: how far attention reaches back; 0: no limit.
    """

    chunk: int
    rows: int
    ratio: int
    left_context_chunks: int

    @property
    def list_width(self) -> int:
        """Most pages that a tile can see."""
        longest = -(-MAX_FRAMES // self.chunk)
        return min(longest, self.left_context_chunks + 1) if self.left_context_chunks else longest

    def tiles(self, span: Span) -> int:
        return -(-span.length * self.ratio // self.chunk)

    def needs(self, spans: Sequence[Span]) -> BatchSize:
        """The least capacity that holds a batch."""
        return BatchSize(sum(self.tiles(span) for span in spans))

    def fits(self, span: Span, largest: BatchSize) -> bool:
        """Whether a batch can hold this span at all."""
        return span.streaming and largest.holds(self.needs([span]))

    def group(self, spans: Sequence[Span], largest: BatchSize) -> list[list[int]]:
        """Indices of spans, in order, in groups that ``largest`` holds; each of them alone must fit."""
        raise NotImplementedError

    def array_shapes(self, size: BatchSize) -> dict[str, tuple[int, ...]]:
        """Name and shape of every array of a batch of this capacity. Their meaning is in ``fill``."""
        tiles = size.tiles
        shapes: dict[str, tuple[int, ...]] = {name: (tiles,) for name in ("live", "page", "last", "previous", "visible")}
        return shapes | {"lists": (tiles, self.list_width), "noise": (tiles, self.rows), "condition": (tiles, self.rows)}

    def fill(self, arrays: dict[str, IntArray32], spans: Sequence[Span], first_conditions: Sequence[int]) -> None:
        """Write a batch; tiles after the last one are dead: they see no key and store to ``SCRATCH_PAGE``.

        first_conditions: row of each span's first frame among the conditions of the batch.

        live: frames of the tile, 0 for a dead one. page: where its state goes. previous: the tile of the chunk before, -1 where that is
        stored or absent; last: the page of it then. visible, lists: how many pages the tile sees, and which. noise, condition: of each
        row, the frame of the sequence and the row of the conditions.
        """
        for name, value in (("live", 0), ("page", SCRATCH_PAGE), ("last", ZERO_PAGE), ("previous", -1), ("visible", 0)):
            arrays[name].fill(value)
        tile = 0
        row = np.arange(self.rows)
        for span, first in zip(spans, first_conditions, strict=True):
            count = self.tiles(span)
            chunks = slice(tile, tile + count)
            live = np.minimum(self.chunk, span.length * self.ratio - np.arange(count) * self.chunk)
            arrays["live"][chunks] = live
            arrays["page"][tile : tile + len(span.keep_pages)] = span.keep_pages
            arrays["last"][tile] = (ZERO_PAGE, *span.context_pages)[-1]
            arrays["previous"][tile + 1 : tile + count] = np.arange(tile, tile + count - 1)
            frame = np.arange(count)[:, None] * self.chunk + np.minimum(row, live[:, None] - 1)
            arrays["noise"][chunks] = np.minimum(span.start * self.ratio + frame, MAX_FRAMES - 1)
            arrays["condition"][chunks] = first + frame
            tile += count

    def _fill_lists(self, arrays: dict[str, IntArray32], tile: int, stored: Sequence[int], own: Sequence[int]) -> None:
        """What the tiles of one span see: the stored pages, and the span's own up to the tile itself."""
        everything = np.array([*stored, *own], np.int32)
        for number in range(len(own)):
            end = len(stored) + number + 1
            begin = max(0, end - self.list_width)
            arrays["visible"][tile + number] = end - begin
            arrays["lists"][tile + number, : end - begin] = everything[begin:end]


@dataclass(frozen=True)
class BatchLayout(TileLayout):
    """Of the U-Net, whose pages are keys and values as they are. scratch_pages: of one batch, for chunks that no page keeps."""

    scratch_pages: range

    def scratch(self, span: Span) -> int:
        """Scratch pages that a span needs."""
        return self.tiles(span) - sum(page != SCRATCH_PAGE for page in span.keep_pages)

    def fits(self, span: Span, largest: BatchSize) -> bool:
        return super().fits(span, largest) and self.scratch(span) <= len(self.scratch_pages)

    def group(self, spans: Sequence[Span], largest: BatchSize) -> list[list[int]]:
        groups: list[list[int]] = []
        tiles = scratch = 0
        for index, span in enumerate(spans):
            tiles, scratch = tiles + self.tiles(span), scratch + self.scratch(span)
            if not groups or tiles > largest.tiles or scratch > len(self.scratch_pages):
                groups.append([])
                tiles, scratch = self.tiles(span), self.scratch(span)
            groups[-1].append(index)
        return groups

    def array_shapes(self, size: BatchSize) -> dict[str, tuple[int, ...]]:
        return super().array_shapes(size) | {"scratch_live": (len(self.scratch_pages),)}

    def fill(self, arrays: dict[str, IntArray32], spans: Sequence[Span], first_conditions: Sequence[int]) -> None:
        """As ``TileLayout.fill``; what no page keeps goes to scratch pages. scratch_live: live rows of each of those."""
        super().fill(arrays, spans, first_conditions)
        tile = scratch = 0
        for span in spans:
            pages = arrays["page"][tile : tile + self.tiles(span)]
            for number in np.flatnonzero(pages == SCRATCH_PAGE).tolist():
                pages[number] = self.scratch_pages[scratch]
                arrays["scratch_live"][scratch] = arrays["live"][tile + number]
                scratch += 1
            self._fill_lists(arrays, tile, span.context_pages, pages.tolist())
            tile += len(pages)


def output_rows(spans: Sequence[Span], layout: TileLayout) -> NDArray[np.int64]:
    """Packed row of each frame of all spans, one span after another."""
    found, tile = [], 0
    for span in spans:
        frame = np.arange(span.length * layout.ratio)
        found.append((tile + frame // layout.chunk) * layout.rows + frame % layout.chunk)
        tile += layout.tiles(span)
    return np.concatenate(found)
