"""Device memory that the recorded calls of all buckets share. Calls never run at the same time, so one set is enough."""

from __future__ import annotations

import torch
from torch import Tensor

from bistream.checkpoints.config import FlowConfig
from bistream.token2mel.estimator import FEED_FORWARD_RATIO
from bistream.token2mel.pages import GUIDANCE_ROWS


class FlowBuffers:
    """``frames``: capacity of the largest bucket. Names and shapes are those of the kernels' arguments.

    few_rows: rows (both halves) of the largest bucket for ``launches_few``. split_rows: largest product of rows and key splits of those.
    pages: most pages that a batch reads.
    """

    def __init__(
        self, config: FlowConfig, frames: int, few_rows: int, split_rows: int, pages: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        encoder, estimator = config.encoder, config.estimator
        width, heads = estimator.channels[0], estimator.num_heads
        rows = GUIDANCE_ROWS * frames

        def half(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        def single(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float32, device=device)

        # solver
        self.mel = single(frames, config.output_size)
        self.inputs = half(rows, estimator.in_channels)
        # estimator
        self.x = single(rows, width)
        self.normed = half(rows, width)
        self.widened = half(GUIDANCE_ROWS, pages, estimator.static_chunk_size, width)
        self.query = half(rows, heads, width)
        self.attended = half(rows, heads, width)
        self.raw = half(rows, width)
        self.active = half(rows, width)
        self.source = half(rows, width)
        self.joined = half(rows, 2 * width)
        # for many rows only
        self.values = half(rows, heads * estimator.attention_head_dim)
        self.hidden = half(rows, FEED_FORWARD_RATIO * width)
        # for few rows only
        self.odd = single(few_rows, width)
        self.shortcut = single(few_rows, width)
        self.middle = half(few_rows, width)
        self.parts = half(split_rows, heads, estimator.attention_head_dim)
        self.lse = single(split_rows, heads)
        # encoder
        width = encoder.output_size
        self.encoder_x = single(frames, width)
        self.qkv = half(frames, 3 * width)
        self.turned = half(frames, encoder.attention_heads, width)
        self.encoder_attended = half(frames, width)
        self.encoder_hidden = half(frames, encoder.linear_units)
        self.encoder_copy = half(frames, width)
        self.upsampled = half(frames, width)
