"""Sizes that the flow's kernels fix. No torch."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Count = TypeVar("Count", int, NDArray[np.int64])

# Reach of the convolutions to the left
LOOKAHEAD_HISTORY_TOKENS = 2  # second lookahead convolution of the encoder (kernel 3), at 25 Hz
UPSAMPLE_HISTORY_TOKENS = 2  # upsampling convolution (kernel 2 * ratio + 1 over frames repeated ratio times)
CONV_HISTORY_FRAMES = 2  # causal convolutions of the estimator (kernel 3), at 50 Hz


def form_offset(tokens: Count, ratio: int) -> Count:
    """First row of a chunk's form with so many known tokens, among the rows of all its forms (``first_step``): shorter ones first."""
    return ratio * tokens * (tokens - 1) // 2
