"""Device memory of the DiT's state. A page holds one complete chunk of 25 tokens (50 frames), for every solver step and both guidance rows:

    context   the modulated, normalised input of each block      [steps, blocks, 2, page, 50, width]
    tail      the last 30 inputs of both position convolutions    [steps, 2, page, 30, 2 * width]

At full size in 16 bit that is 47.5 MB per second of audio (45.06 + 2.46). Keys and values would take 90.1: they are as wide as the block,
and are projected again in every call. There is no state at the rate of tokens: the lookahead layer reads two tokens to the left.
"""

from __future__ import annotations

import torch

from bistream.checkpoints.config import DitFlowConfig
from bistream.token2mel.dit.estimator import CONV_HISTORY_FRAMES, POSITION_CONVS
from bistream.token2mel.page_pool import FIRST_PAGE, ZERO_PAGE
from bistream.token2mel.paged_memory import PagedMemory, PageTables
from bistream.token2mel.pages import GUIDANCE_ROWS


class DitPages:
    """``paged_memory.StatePages``. A page is written as a whole before it is read, except for ``ZERO_PAGE``."""

    conv_history = CONV_HISTORY_FRAMES

    def __init__(self, config: DitFlowConfig, pages: int, dtype: torch.dtype, device: torch.device) -> None:
        dit, rows = config.dit, FIRST_PAGE + pages
        self.total = pages
        self.chunk_frames = dit.static_chunk_size
        context = (config.n_timesteps, dit.depth, GUIDANCE_ROWS, rows, self.chunk_frames, dit.dim)
        tail = (config.n_timesteps, GUIDANCE_ROWS, rows, CONV_HISTORY_FRAMES, POSITION_CONVS * dit.dim)
        self.context = torch.empty(context, dtype=dtype, device=device)
        self.tail = torch.empty(tail, dtype=dtype, device=device)
        self.context[:, :, :, ZERO_PAGE].zero_()
        self.tail[:, :, ZERO_PAGE].zero_()

    def memory(self, tables: PageTables) -> PagedMemory:
        return PagedMemory(self, tables)


def page_bytes(config: DitFlowConfig, dtype: torch.dtype) -> int:
    """Bytes of one page (one second of audio)."""
    rows = config.dit.depth * config.dit.static_chunk_size + POSITION_CONVS * CONV_HISTORY_FRAMES
    return config.n_timesteps * GUIDANCE_ROWS * rows * config.dit.dim * dtype.itemsize
