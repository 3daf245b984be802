"""How text tokens are spelled, as a part of their embedding in training: rare ones learn from common ones with the same letters.

When the network is exported, the sum is one table, as the file has it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from training.bpe import LONGEST

_LETTER_SIZE = 32
_BYTES = 256


def letters_of(pieces: Sequence[bytes]) -> Tensor:
    """The spelling of each text id -> uint8 [ids, LONGEST]: its first bytes, then zeros."""
    rows = [list(piece[:LONGEST]) + [0] * (LONGEST - len(piece)) for piece in pieces]
    return torch.tensor(rows, dtype=torch.uint8)


class Spelling(nn.Module):
    """Embeddings of text ids from their letters. ``letters`` is kept with the weights, so that an export needs no vocabulary."""

    letters: Tensor

    def __init__(self, text_ids: int, hidden_size: int) -> None:
        super().__init__()
        self.bytes = nn.Embedding(_BYTES, _LETTER_SIZE)
        self.widen = nn.Linear(LONGEST * _LETTER_SIZE, hidden_size)
        self.project = nn.Linear(hidden_size, hidden_size, bias=False)
        nn.init.normal_(self.project.weight, std=0.02 * hidden_size**-0.5)
        self.register_buffer("letters", torch.zeros(text_ids, LONGEST, dtype=torch.uint8))

    def forward(self) -> Tensor:
        """float32 [text ids, hidden]."""
        embedded = self.bytes(self.letters.int()).flatten(1)
        found: Tensor = self.project(torch.nn.functional.silu(self.widen(embedded)))
        return found
