"""Everything that a step of the language model writes on CUDA, but for cache and sampler state; shared by all buckets."""

from __future__ import annotations

import torch
from torch import Tensor

from bistream.config import LanguageModelConfig
from bistream.text2token.cuda.host_rows import NUM_FIELDS
from bistream.text2token.sizes import NUM_CHUNKS

ROW_TILE = 256  # the largest row tile of any kernel: buffers are padded to it
LOGITS_TILE = 64
MEETING_TILE = 64  # the smallest tile of kernels_mlp.down_many


class StepBuffers:
    """``ring`` and ``results`` are pinned host memory with one entry per step in flight; ``clock`` says which is next."""

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
        self.xb = zeros(rows, hidden, dtype=torch.bfloat16)  # a copy of it for the next projection
        self.squares = zeros(2 * config.num_hidden_layers + 1, rows, dtype=torch.int64)  # sums of squares, one row per norm
        self.query = zeros(rows, hidden, dtype=torch.bfloat16)
        self.attended = zeros(rows, hidden, dtype=torch.bfloat16)
        self.hidden = zeros(rows, config.intermediate_size, dtype=torch.bfloat16)
        self.down_part = zeros(NUM_CHUNKS, rows, hidden)
        tiles = (rows // MEETING_TILE) * (hidden // MEETING_TILE)
        self.arrived = zeros(config.num_hidden_layers, tiles, dtype=torch.int32)  # chunks of ``down_part`` that are there
        self.logits_stride = -(-(config.speech_token_size + 3) // LOGITS_TILE) * LOGITS_TILE
        self.logits = zeros(rows, self.logits_stride)
