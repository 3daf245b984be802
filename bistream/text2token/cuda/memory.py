"""Device memory of the language model step: keys and values of all sequences, and the step's buffers, shared by all buckets.

The cache is stored in blocks that the attention kernel can read without changing their layout: 8192 numbers per block and key/value
head, the keys, then the values. The matrix instruction takes keys as [dimension, position] and values as [position, dimension],
8 columns and 32 rows at a time; so both are stored as tiles::

    keys    [position / 8][dimension / 32][position % 8][packed(dimension % 32)]
    values  [dimension / 8][position / 32][dimension % 8][packed(position % 32)]

with packed(i) = ``packed_index``. Written by the qkv kernels, read by ``kernels_attention``; ``block_pool`` decides the ownership of
blocks. Zeroed once: masked values of a block are multiplied by zero, so they must be finite.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bistream.checkpoints.config import LanguageModelConfig
from bistream.text2token.cuda.batch import NUM_FIELDS
from bistream.text2token.sizes import NUM_CHUNKS

ROW_TILE = 256  # the largest row tile of any kernel; buffers are padded to a multiple of it
LOGITS_TILE = 64
MEETING_TILE = 64  # the smallest tile of kernels_down.down_many
BLOCK_SIZE = 64
HEAD_SIZE = 64


def packed_index(index: Tensor) -> Tensor:
    """Storage index of element ``index`` (0..31) of 32 along the summed dimension: ``arithmetic.packed_column`` on the host."""
    return (index >> 1 & 3) * 8 + (index >> 4 & 1) * 4 + (index >> 3 & 1) * 2 + (index & 1)


class CudaCache:
    """``blocks`` bfloat16 [layers, num_blocks, kv_heads, 2 (key, value), 4096]."""

    block_size = BLOCK_SIZE

    def __init__(self, config: LanguageModelConfig, num_blocks: int, device: torch.device) -> None:
        size = (config.num_hidden_layers, num_blocks, config.num_key_value_heads, 2, BLOCK_SIZE * HEAD_SIZE)
        self.blocks = torch.zeros(size, dtype=torch.bfloat16, device=device)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (source, target); all sources are read first, so a source may be the target of another pair."""
        sources = torch.tensor([source for source, _ in pairs]).to(self.blocks.device, non_blocking=True)
        targets = torch.tensor([target for _, target in pairs]).to(self.blocks.device, non_blocking=True)
        self.blocks[:, targets] = self.blocks[:, sources]


class StepBuffers:
    """Everything that a step writes, except cache and sampler state.

    ``ring`` and ``results`` are pinned host memory with one entry per step in flight; ``clock`` holds the index of the next one.
    """

    def __init__(self, config: LanguageModelConfig, max_rows: int, depth: int, table: Tensor, device: torch.device) -> None:
        rows = -(-max_rows // ROW_TILE) * ROW_TILE
        hidden = config.hidden_size

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.max_rows = rows
        self.depth = depth
        self.table = table  # int32 [slots, blocks per sequence]
        self.ring = torch.zeros((depth, rows, NUM_FIELDS), dtype=torch.int32, pin_memory=True)
        self.results = torch.zeros((depth, rows), dtype=torch.int32, pin_memory=True)
        self.clock = zeros(2, dtype=torch.int32)
        self.rows = zeros(NUM_FIELDS, rows, dtype=torch.int32)  # the step's entry of the ring, on the device
        self.x = zeros(rows, hidden)  # residual stream
        self.xb = zeros(rows, hidden, dtype=torch.bfloat16)  # its copy for the next projection
        self.squares = zeros(2 * config.num_hidden_layers + 1, rows, dtype=torch.int64)  # sums of squares for every norm
        self.query = zeros(rows, hidden, dtype=torch.bfloat16)
        self.attended = zeros(rows, hidden, dtype=torch.bfloat16)
        self.hidden = zeros(rows, config.intermediate_size, dtype=torch.bfloat16)
        self.down_part = zeros(NUM_CHUNKS, rows, hidden)
        tiles = (rows // MEETING_TILE) * (hidden // MEETING_TILE)
        self.arrived = zeros(config.num_hidden_layers, tiles, dtype=torch.int32)  # arrivals of the chunks in ``down_part``
        self.logits_stride = -(-config.num_scores // LOGITS_TILE) * LOGITS_TILE
        self.logits = zeros(rows, self.logits_stride)
