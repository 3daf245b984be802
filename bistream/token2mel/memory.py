"""The networks' view of stored state: small interfaces and their stateless implementation.

A network asks its memory to *extend* a tensor of new frames to the left by the frames that earlier calls stored; the memory
may store the new ones. Calls come in network order, so no layer needs an index. With the blank memory a call sees only
its own frames: the plain path, offline synthesis, and the start of every sequence.

Only this module and the two attention layers know the form of attention state: the encoder keeps keys and values (small),
the estimator its normalised block inputs, which are a quarter of the size of keys and values and projected again in every
call.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from bistream.token2mel.sizes import CONV_HISTORY_FRAMES, UPSAMPLE_HISTORY_TOKENS


class EncoderMemory(Protocol):
    def extend_attention(self, keys_values: Tensor) -> Tensor:
        """[S, T, 2 * width] of one layer's new frames -> [S, context + T, 2 * width]."""

    def extend_upsample(self, x: Tensor) -> Tensor:
        """[S, T, width] -> [S, 2 + T, width]; zeros before the start of the sequence."""


class StepMemory(Protocol):
    """Estimator state of one solver step."""

    def extend_conv(self, x: Tensor) -> Tensor:
        """[B, T, C] input of one causal convolution -> [B, history + T, C]; zeros before the start of the sequence."""

    def extend_attention(self, x: Tensor) -> Tensor:
        """[B, T, width] normalised input of one transformer block -> [B, context + T, width]."""

    def end_step(self) -> None:
        """All layers of the step have been called."""


class SolverMemory(Protocol):
    """Estimator state of all solver steps."""

    def step(self, index: int) -> StepMemory: ...


class FlowMemory(SolverMemory, Protocol):
    def encoder(self) -> EncoderMemory: ...


class BlankEncoderMemory:
    def extend_attention(self, keys_values: Tensor) -> Tensor:
        return keys_values

    def extend_upsample(self, x: Tensor) -> Tensor:
        return F.pad(x, (0, 0, UPSAMPLE_HISTORY_TOKENS, 0))


class BlankStepMemory:
    """history: frames that a causal convolution reaches back."""

    def __init__(self, history: int = CONV_HISTORY_FRAMES) -> None:
        self._history = history

    def extend_conv(self, x: Tensor) -> Tensor:
        return F.pad(x, (0, 0, self._history, 0))

    def extend_attention(self, x: Tensor) -> Tensor:
        return x

    def end_step(self) -> None:
        pass


class BlankMemory:
    """Reads and keeps no state. history: as in ``BlankStepMemory``."""

    def __init__(self, history: int = CONV_HISTORY_FRAMES) -> None:
        self._history = history

    def encoder(self) -> EncoderMemory:
        return BlankEncoderMemory()

    def step(self, index: int) -> StepMemory:
        return BlankStepMemory(self._history)


def attention_bias(
    lengths: Tensor,
    context_chunks: Tensor,
    *,
    frames: int,
    table_chunks: int,
    chunk_frames: int,
    left_context_chunks: int,
    streaming: bool,
    dtype: torch.dtype,
) -> Tensor:
    """Additive attention mask [S, 1, frames, table_chunks * chunk_frames + frames]: 0 where visible, else minus infinity.

    lengths: int64 [S], real new frames of each row (1 or more); the new part starts on a chunk boundary.
    context_chunks: int64 [S], how many chunks of the table are real; the table is aligned to the right.
    left_context_chunks: chunks visible to the left of a query's own chunk; 0 is all.

    Streaming: a frame sees its own chunk and all earlier ones (the reference's ``subsequent_chunk_mask``, counted from
    the start of the prompt). Not streaming: all real frames. Padded queries see what the last real one sees, so no row
    of scores is empty and padding stays finite.
    """
    device = lengths.device
    new = torch.arange(frames, device=device)
    table = torch.arange(-table_chunks * chunk_frames, 0, device=device)
    key = torch.cat([table, new])
    key_chunk = torch.div(key, chunk_frames, rounding_mode="floor")
    visible = (key_chunk >= -context_chunks[:, None]) & (key < lengths[:, None])  # [S, K]
    visible = visible[:, None, :]
    if streaming:
        last = torch.div(lengths - 1, chunk_frames, rounding_mode="floor")
        query_chunk = torch.minimum(torch.div(new, chunk_frames, rounding_mode="floor")[None, :], last[:, None])[:, :, None]
        visible = visible & (key_chunk <= query_chunk)
        if left_context_chunks:
            visible = visible & (key_chunk >= query_chunk - left_context_chunks)
    else:
        visible = visible.expand(-1, frames, -1)
    bias = torch.zeros(visible.shape, dtype=dtype, device=device)
    return bias.masked_fill_(~visible, float("-inf")).unsqueeze(1)
