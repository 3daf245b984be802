"""Device memory of the DiT's state. A page holds one complete chunk of 25 tokens (50 frames), for every solver step and both guidance rows:

    context   the modulated, normalised input of each block      [steps, blocks, 2, page, 50, width]
    tail      the last 30 inputs of both position convolutions    [steps, 2, page, 30, 2 * groups, width of a group]

Those of a network of 16 bit are stored as 8-bit integers (``state_rows``): at full size 23.9 MB per second of audio (22.6 + 1.3). Keys and
values in 16 bit would take 90.1: they are as wide as the block, and are projected again in every call. There is no state at the rate of
tokens: the lookahead layer reads two tokens to the left.
"""

from __future__ import annotations

import torch

from bistream.checkpoints.config import DitFlowConfig
from bistream.token2mel.dit.estimator import CONV_HISTORY_FRAMES, POSITION_CONVS
from bistream.token2mel.page_pool import FIRST_PAGE, ZERO_PAGE
from bistream.token2mel.paged_memory import PagedMemory, PageTables
from bistream.token2mel.pages import GUIDANCE_ROWS
from bistream.token2mel.sizes import DIT_CONV_GROUPS
from bistream.token2mel.state_rows import StateRows, row_bytes


class DitPages:
    """``paged_memory.StatePages``. A page is written as a whole before it is read, except for ``ZERO_PAGE``."""

    conv_history = CONV_HISTORY_FRAMES

    def __init__(self, config: DitFlowConfig, pages: int, dtype: torch.dtype, device: torch.device) -> None:
        dit, rows = config.dit, FIRST_PAGE + pages
        self.total = pages
        self.chunk_frames = dit.static_chunk_size
        context = (config.n_timesteps, dit.depth, GUIDANCE_ROWS, rows, self.chunk_frames, dit.dim)
        tail = (config.n_timesteps, GUIDANCE_ROWS, rows, CONV_HISTORY_FRAMES, POSITION_CONVS * DIT_CONV_GROUPS, dit.dim // DIT_CONV_GROUPS)
        self.context = StateRows.empty(context, dtype, device)
        self.tail = StateRows.empty(tail, dtype, device)
        self.context[:, :, :, ZERO_PAGE].zero_()
        self.tail[:, :, ZERO_PAGE].zero_()

    def context_of(self, step: int) -> StateRows:
        """As ``StatePages`` says."""
        return self.context[step]

    def tail_of(self, step: int) -> StateRows:
        """As ``StatePages`` says."""
        return self.tail[step]

    def memory(self, tables: PageTables) -> PagedMemory:
        return PagedMemory(self, tables)


def page_bytes(config: DitFlowConfig, dtype: torch.dtype) -> int:
    """Bytes of one page (one second of audio)."""
    context = config.dit.depth * config.dit.static_chunk_size * row_bytes(config.dit.dim, dtype)
    tail = POSITION_CONVS * CONV_HISTORY_FRAMES * DIT_CONV_GROUPS * row_bytes(config.dit.dim // DIT_CONV_GROUPS, dtype)
    return config.n_timesteps * GUIDANCE_ROWS * (context + tail)
