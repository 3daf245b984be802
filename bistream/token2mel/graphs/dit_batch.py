"""A batch of the DiT's spans as integers, and the sizes that are recorded. No torch.

The DiT's keys and values are projected anew in every call, from stored pages (``dit.pages``) and from the batch's own tiles, to slots:
first those of stored pages, as many as the batch has room for, then one for each tile. A page that several sessions read at the same place,
such as one of their voice, has one slot. So attention sees slots, and no chunk needs a page to be attended to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bistream.token2mel.batching import Span
from bistream.token2mel.graphs.batch import BatchSize, IntArray32, TileLayout
from bistream.token2mel.page_pool import ZERO_PAGE

FEW_PAGES = 32  # stored pages of one batch, whose keys and values of all blocks are made at once: 0.3 GB at full size
MOST_PAGES = 1024  # of any batch; 0.4 GB for the keys and values of one block
FEW_TILES = 8

Stored = tuple[int, int]  # a page, and the frame of the sequence with which it begins


def batch_sizes(tiles: Sequence[int], pages: int) -> list[BatchSize]:
    """Sizes to record where there are ``pages`` pages, cheapest first; the last one holds all that the others hold.

    Projecting takes time for the pages that a batch has, whatever its size, so there are two for few tiles and one for many.
    """
    few, most = (min(count, pages) for count in (FEW_PAGES, MOST_PAGES))
    sizes = {BatchSize(count, most) for count in tiles} | {BatchSize(count, few) for count in tiles if count <= FEW_TILES}
    return sorted(sizes, key=lambda size: (size.context > FEW_PAGES, size.tiles))


@dataclass(frozen=True)
class SlotLayout(TileLayout):
    """Of the DiT."""

    def stored(self, span: Span) -> list[Stored]:
        """The pages that a span reads. They stand directly before it, whatever its session has forgotten."""
        pages = span.context_pages[-self.left_context_chunks :] if self.left_context_chunks else span.context_pages
        first = span.start * self.ratio - len(pages) * self.chunk
        return [(page, first + number * self.chunk) for number, page in enumerate(pages)]

    def needs(self, spans: Sequence[Span]) -> BatchSize:
        pages = {page for span in spans for page in self.stored(span)}
        return BatchSize(sum(self.tiles(span) for span in spans), len(pages))

    def group(self, spans: Sequence[Span], largest: BatchSize) -> list[list[int]]:
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
        shapes = {"start": (size.tiles,), "context": (size.context,), "context_start": (size.context,), "used": (1,)}
        return super().array_shapes(size) | shapes

    def fill(self, arrays: dict[str, IntArray32], spans: Sequence[Span], first_conditions: Sequence[int]) -> None:
        """As ``TileLayout.fill``; lists are of slots, and what is not kept goes to ``SCRATCH_PAGE``.

        start: the frame of the sequence with which each tile begins. context, context_start: the page in each slot, and its first frame;
        used: how many slots have one, the first ones.
        """
        super().fill(arrays, spans, first_conditions)
        for name, value in (("start", 0), ("context", ZERO_PAGE), ("context_start", 0)):
            arrays[name].fill(value)
        slots: dict[Stored, int] = {}
        tile, own = 0, len(arrays["context"])
        for span in spans:
            count = self.tiles(span)
            arrays["start"][tile : tile + count] = span.start * self.ratio + np.arange(count) * self.chunk
            read = [slots.setdefault(page, len(slots)) for page in self.stored(span)]
            self._fill_lists(arrays, tile, read, range(own + tile, own + tile + count))
            tile += count
        for (page, first), slot in slots.items():
            arrays["context"][slot], arrays["context_start"][slot] = page, first
        arrays["used"][0] = len(slots)
