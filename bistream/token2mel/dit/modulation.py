"""Time embedding of the DiT and the vectors that it gives the blocks: constants of the solver steps, computed once.

Their weights, over a third of the network's, are not kept.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bistream.checkpoints.config import DitConfig
from bistream.token2mel.dit.estimator import BLOCK_VECTORS, END_VECTORS
from bistream.token2mel.estimator import time_sinusoid

TIME_FREQUENCIES = 256


class Modulation(nn.Module):
    def __init__(self, config: DitConfig) -> None:
        super().__init__()
        self.linear1 = nn.Linear(TIME_FREQUENCIES, config.dim)
        self.linear2 = nn.Linear(config.dim, config.dim)
        self.blocks = nn.ModuleList(nn.Linear(config.dim, BLOCK_VECTORS * config.dim) for _ in range(config.depth))
        self.end = nn.Linear(config.dim, END_VECTORS * config.dim)

    def embed(self, t: Tensor) -> Tensor:
        """Times [N] from 0 to 1 -> [N, dim]."""
        embedded: Tensor = self.linear2(F.silu(self.linear1(time_sinusoid(t.float(), TIME_FREQUENCIES))))
        return embedded

    @torch.no_grad()
    def forward(self, t: Tensor) -> Tensor:
        """Times [N] -> float32 [N, ``estimator.modulation_size``]: of each block shift, scale and gate, twice; then scale and shift."""
        embedded = F.silu(self.embed(t))
        return torch.cat([linear(embedded) for linear in (*self.blocks, self.end)], dim=1)
