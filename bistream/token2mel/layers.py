"""Building blocks shared by the flow's encoder and estimator. Everything is channel-last: [batch, time, channels]."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bistream.gpu.steps import tiles


class WindowLinear(nn.Module):
    """A 1-D convolution of stride 1 without padding, as one matrix product over windows of ``kernel`` frames.

    The weight is kept as [out, kernel, in] (a file has [out, in, kernel]), so that it is a plain matrix in the layout of
    the concatenated window. The caller extends the input by kernel - 1 frames on the side the convolution reaches to.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel: int) -> None:
        super().__init__()
        self.kernel = kernel
        self.weight = nn.Parameter(torch.empty(out_channels, kernel, in_channels))
        self.bias = nn.Parameter(torch.empty(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        """[B, T + kernel - 1, in] -> [B, T, out]."""
        frames = x.shape[1] - self.kernel + 1
        if self.kernel > 1:
            x = torch.cat([x[:, offset : offset + frames] for offset in range(self.kernel)], dim=-1)
        return F.linear(x, self.weight.flatten(1), self.bias)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, T, heads * size] -> [B, heads, T, size], a view."""
    return x.reshape(*x.shape[:-1], heads, -1).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """[B, heads, T, size] -> [B, T, heads * size]."""
    return x.transpose(1, 2).flatten(2)


def query_tiles(queries: int, keys: int, max_scores: int | None) -> Iterator[slice]:
    """The queries of an attention in pieces of at most about ``max_scores`` scores per head; None: all at once."""
    return tiles(queries, queries or 1 if max_scores is None else max(1, max_scores // keys))


def bias_rows(bias: Tensor | None, rows: slice) -> Tensor | None:
    """The rows of an attention bias [S, 1, T, K]; None is no bias."""
    return None if bias is None else bias[:, :, rows]


def join_tiles(parts: list[Tensor]) -> Tensor:
    """Pieces of [B, T, channels] along time."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
