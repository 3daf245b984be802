"""The convolutions that let a token see the next ones: of both flows, at 25 Hz."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bistream.token2mel.layers import WindowLinear
from bistream.token2mel.sizes import LOOKAHEAD_HISTORY_TOKENS


class Lookahead(nn.Module):
    """Mixes ``lookahead`` tokens to the right into each token, then two to the left, and adds the input."""

    def __init__(self, width: int, lookahead: int, channels: int | None = None) -> None:
        """channels: between the two convolutions; None: ``width``."""
        super().__init__()
        self.conv1 = WindowLinear(width, channels or width, lookahead + 1)
        self.conv2 = WindowLinear(channels or width, width, LOOKAHEAD_HISTORY_TOKENS + 1)

    def forward(self, x: Tensor, starts: Tensor) -> Tensor:
        """x: [S, 2 + T + lookahead, width], two tokens of history first; starts: int64 [S], position of the first new token.

        Returns [S, T, width]. Before the start of a sequence the second convolution sees zeros, not the first one's output.
        """
        mixed = F.leaky_relu(self.conv1(x), 0.01)  # [S, 2 + T, channels]
        history = torch.arange(-LOOKAHEAD_HISTORY_TOKENS, mixed.shape[1] - LOOKAHEAD_HISTORY_TOKENS, device=x.device)
        exists = (starts[:, None] + history) >= 0
        mixed = mixed * exists[:, :, None]
        end = mixed.shape[1]
        out: Tensor = self.conv2(mixed)
        return out + x[:, LOOKAHEAD_HISTORY_TOKENS:end]
