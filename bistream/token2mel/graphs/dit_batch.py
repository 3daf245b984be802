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

CONTEXTS = (8, 32, 64, 128, 256, 512, 1024)  # stored pages of one batch; 0.6 MB of working memory each at full size
_MOST_CONTEXT, _LEAST_CONTEXT = 64, 2  # stored pages per tile, for which sizes are recorded: a minute of speech, and two seconds

Stored = tuple[int, int]  # a page, and the frame of the sequence with which it begins


def batch_sizes(tiles: Sequence[int], pages: int, contexts: Sequence[int] = CONTEXTS) -> list[BatchSize]:
    """Sizes to record where there are ``pages`` pages, cheapest first; the last one holds all that the others hold."""
    useful = [context for number, context in enumerate(contexts) if not number or contexts[number - 1] < pages]
    sizes = {BatchSize(count, context) for count in tiles for context in useful if _is_usual(count, context)}
    sizes |= {BatchSize(count, useful[-1]) for count in tiles if not any(size.tiles == count for size in sizes)}
    return sorted(sizes | {BatchSize(max(tiles), useful[-1])}, key=lambda size: (size.cost, size.tiles))


def _is_usual(tiles: int, context: int) -> bool:
    return _LEAST_CONTEXT * tiles <= context <= _MOST_CONTEXT * tiles


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
        return super().array_shapes(size) | {"start": (size.tiles,), "context": (size.context,), "context_start": (size.context,)}

    def fill(self, arrays: dict[str, IntArray32], spans: Sequence[Span], first_conditions: Sequence[int]) -> None:
        """As ``TileLayout.fill``; lists are of slots, and what is not kept goes to ``SCRATCH_PAGE``.

        start: the frame of the sequence with which each tile begins. context, context_start: the page in each slot, and its first frame.
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
