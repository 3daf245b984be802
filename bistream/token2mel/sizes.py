"""Sizes that the flow's networks fix, and those that their recorded graphs require. No torch."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from bistream.checkpoints.config import DitConfig, FlowConfig

Count = TypeVar("Count", int, NDArray[np.int64])

# Reach of the convolutions to the left
LOOKAHEAD_HISTORY_TOKENS = 2  # second lookahead convolution of the encoder (kernel 3), at 25 Hz
UPSAMPLE_HISTORY_TOKENS = 2  # upsampling convolution (kernel 2 * ratio + 1 over frames repeated ratio times)
DIT_CONV_GROUPS = 16  # of the DiT's position convolutions
CONV_HISTORY_FRAMES = 2  # causal convolutions of the estimator (kernel 3), at 50 Hz


def form_offset(tokens: Count, ratio: int) -> Count:
    """First row of a chunk's form with ``tokens`` known tokens among the rows of all its forms (``first_step``), shorter ones first."""
    return ratio * tokens * (tokens - 1) // 2


def unet_graphs_need(config: FlowConfig) -> tuple[str, ...]:
    """Requirements of the U-Net's kernels that these sizes do not meet, as noun phrases; empty for CosyVoice2-0.5B."""
    encoder, estimator = config.encoder, config.estimator
    head = encoder.output_size // encoder.attention_heads
    powers = all(size & (size - 1) == 0 for size in (encoder.output_size, head))
    rules = (
        ((estimator.channels[0], estimator.num_heads, estimator.attention_head_dim) == (256, 8, 64), "an estimator of 8 heads, 256 wide"),
        (estimator.static_chunk_size <= 64, "chunks of at most 64 frames"),
        (estimator.in_channels % 64 == 0, "estimator inputs of n * 64 channels"),
        (powers and head >= 16 and encoder.linear_units % 64 == 0, "an encoder with sizes that are powers of two"),
        (config.token_mel_ratio == 2, "2 frames per token"),
    )
    return tuple(text for good, text in rules if not good)


def dit_graphs_need(config: DitConfig) -> tuple[str, ...]:
    """The same of the DiT's kernels."""
    sizes = {"heads": config.dim_head, "groups of the position convolutions": config.dim // DIT_CONV_GROUPS}
    return tuple(f"{name} of 16, 32, 64 or 128 channels" for name, size in sizes.items() if size not in (16, 32, 64, 128))
