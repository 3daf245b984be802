"""Keys and values of all sequences on CUDA, in blocks that the attention kernel can read without changing their layout.

Of every block and key/value head 8192 numbers: the keys, then the values. The matrix instruction takes keys as [dimension,
position] and values as [position, dimension], 8 columns and 32 rows at a time; so both are stored as tiles::

    keys    [position / 8][dimension / 32][position % 8][packed(dimension % 32)]
    values  [dimension / 8][position / 32][dimension % 8][packed(position % 32)]

with packed(i) = ``packed_index``. Written by the qkv kernels, read by ``kernels_attention``. Which block belongs to whom is decided
by ``block_pool``. Zeroed once: what is masked in a block is multiplied by zero, so it must be finite.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bistream.config import LanguageModelConfig

BLOCK_SIZE = 64
HEAD_SIZE = 64


def packed_index(index: Tensor) -> Tensor:
    """Where element ``index`` (0..31) of 32 along the summed dimension is stored: ``arithmetic.packed_column`` on the host."""
    return (index >> 1 & 3) * 8 + (index >> 4 & 1) * 4 + (index >> 3 & 1) * 2 + (index & 1)


class CudaCache:
    """``blocks`` bfloat16 [layers, num_blocks, kv_heads, 2 (key, value), 4096]."""

    block_size = BLOCK_SIZE

    def __init__(self, config: LanguageModelConfig, num_blocks: int, device: torch.device) -> None:
        size = (config.num_hidden_layers, num_blocks, config.num_key_value_heads, 2, BLOCK_SIZE * HEAD_SIZE)
        self.blocks = torch.zeros(size, dtype=torch.bfloat16, device=device)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (source, target), all at once: a source may be the target of another pair."""
        sources = torch.tensor([source for source, _ in pairs]).to(self.blocks.device, non_blocking=True)
        targets = torch.tensor([target for _, target in pairs]).to(self.blocks.device, non_blocking=True)
        self.blocks[:, targets] = self.blocks[:, sources]
