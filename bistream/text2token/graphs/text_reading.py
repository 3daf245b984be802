"""Where in its text each row of a step is: the position of the text id that one attention head looks at most (``text2token.text_reading``).

Which positions of the cache hold text ids is kept beside them: each row that is fed says it of its own, so the host sends nothing. Here is
the memory that a step reads and writes; ``cuda.kernels_text_reading`` does so inside the step's kernels.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import torch

from bistream.checkpoints.alignment import Head
from bistream.text2token.kv_cache import PagedCache

NOWHERE = (1 << 31) - 1  # beyond all positions
NOTHING = -(1 << 63)  # in ``found``, of a row without text


class TextReading:
    """is_text: uint8 [positions of the cache]. found: int64 [rows]: the higher half is a score in an order of its own, the lower half
    ``NOWHERE`` less the position in the row's sequence; so the greatest is the earliest of the positions with the greatest score."""

    def __init__(self, head: Head, cache: PagedCache, num_text_ids: int, max_rows: int) -> None:
        self.layer, self.head = head
        self.num_text_ids = num_text_ids
        device, blocks = cache.blocks.device, cache.blocks.shape[2]
        self.is_text = torch.zeros(blocks * cache.block_size, dtype=torch.uint8, device=device)
        self.found = torch.full((max_rows,), NOTHING, dtype=torch.int64, device=device)
        self._block_size = cache.block_size

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Beside ``PagedCache.copy_blocks``."""
        sources, targets = torch.tensor(pairs).T.to(self.is_text.device, non_blocking=True)
        blocks = self.is_text.view(-1, self._block_size)
        blocks[targets] = blocks[sources]


def number_of(found: int, texts: Sequence[int]) -> int:
    """Which of the sequence's text ids, whose positions are ``texts``, a row's ``found`` is; -1: none."""
    position = NOWHERE - (found & 0xFFFFFFFF)
    number = bisect_left(texts, position)
    return number if number < len(texts) and texts[number] == position else -1
