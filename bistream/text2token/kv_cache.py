"""Keys and values of all sequences in one tensor of blocks, whose ownership ``block_pool`` decides.

Written by ``qwen2`` or the kernels of ``graphs`` (every row, before attention) and by the step runner (copies of partial blocks); read by
attention. Memory is not cleared between owners: a reader masks positions outside its sequence. The kernels of ``graphs`` have it zeroed
once, and keep the values of a block as [kv_heads, head_size, block_size].
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bistream.checkpoints.config import LanguageModelConfig


class PagedCache:
    """``blocks`` [layers, 2 (key, value), num_blocks, block_size, kv_heads, head_size]."""

    def __init__(self, config: LanguageModelConfig, num_blocks: int, block_size: int, device: torch.device, dtype: torch.dtype) -> None:
        self.block_size = block_size
        heads = (config.num_key_value_heads, config.head_size)
        self.blocks = torch.empty((config.num_hidden_layers, 2, num_blocks, block_size, *heads), device=device, dtype=dtype)
        self._flat = self.blocks.view(config.num_hidden_layers, 2, num_blocks * block_size, *heads)

    def write(self, layer: int, index: Tensor, key: Tensor, value: Tensor) -> None:
        """Store rows. index [n] = block * block_size + offset; key, value [n, kv_heads, head_size]."""
        self._flat[layer, 0].index_copy_(0, index, key)
        self._flat[layer, 1].index_copy_(0, index, value)

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer, each [num_blocks, block_size, kv_heads, head_size]."""
        return self.blocks[layer, 0], self.blocks[layer, 1]

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (source, target); all sources are read first, so a source may be the target of another pair."""
        sources = torch.tensor([source for source, _ in pairs]).to(self.blocks.device, non_blocking=True)
        targets = torch.tensor([target for _, target in pairs]).to(self.blocks.device, non_blocking=True)
        self.blocks[:, :, targets] = self.blocks[:, :, sources]
