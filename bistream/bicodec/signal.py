"""What a layer sees before and behind its input: nothing (a call over whole signals), or what the previous call left (a stream).

The networks are written once, for both. Everything is channel-first: [batch, channels, positions]. Nothing here is causal: every layer
looks as far to the right as to the left. So in a stream a layer answers late: of n positions that come in, it gives n out, those that are
complete now. ``delay`` counts how many positions the current values are late in all; a residual waits as long as its branch.

A signal is padded with zeros at both ends *of every layer's input*, as in training. In a stream the positions before the first and behind
the last are therefore replaced with zeros before each layer that looks around: what earlier layers make of such positions means nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class Signal(Protocol):
    """One call of a network. Layers use it in network order, so that none needs a name."""

    delay: int

    def around(self, x: Tensor, left: int, right: int) -> Tensor:
        """[B, C, N] -> [B, C, left + N + right]; a convolution over this window gives N positions, ``right`` later in a stream."""

    def raise_rate(self, factor: int, cut: int) -> int:
        """From here on ``factor`` positions for one. cut: positions that a transposed convolution makes before the first.

        Returns how many of them to drop; in a stream none, but all come later by ``cut``.
        """

    def wait(self, x: Tensor, since: int) -> Tensor:
        """x as late as the current values are; since: the delay that x has."""


class WholeSignals:
    """Rows are whole signals. lengths: int64 [B], positions of each row; None: all of them, in every row."""

    def __init__(self, lengths: Tensor | None = None) -> None:
        self.delay = 0
        self._lengths = lengths

    def around(self, x: Tensor, left: int, right: int) -> Tensor:
        if self._lengths is not None:
            x = x * (torch.arange(x.shape[2], device=x.device) < self._lengths[:, None])[:, None]
        return F.pad(x, (left, right))

    def raise_rate(self, factor: int, cut: int) -> int:
        if self._lengths is not None:
            self._lengths = factor * self._lengths
        return cut

    def wait(self, x: Tensor, since: int) -> Tensor:
        return x


@dataclass(frozen=True)
class Part:
    """A row of a stream's call, in tokens. start: of its first one in the signal. end: of the signal, None: not known yet."""

    start: int
    count: int
    end: int | None = None


class SignalParts:
    """Rows are the next parts of signals. The first ``count`` tokens of a row are its own, and padding follows.

    stored: [B, numbers], as ``kept`` gave it after the previous call of each row; None: all signals start. places: of the parts. most:
    tokens of a row, with padding. parts: what the host knows of them, which saves work; None: nothing, as in a recorded call.
    """

    def __init__(self, stored: Tensor | None, places: Tensor, most: int, parts: Sequence[Part] | None = None) -> None:
        self.delay = 0
        self._stored, self._parts, self._rate = stored, parts, 1
        self._place = 0
        self._kept: list[Tensor] = []
        self._most = most
        self._starts, self._counts, self._ends = places

    @classmethod
    def of(cls, stored: Tensor | None, parts: Sequence[Part], device: torch.device) -> SignalParts:
        return cls(stored, cls.places(parts, device), max(part.count for part in parts), parts)

    @staticmethod
    def places(parts: Sequence[Part], device: torch.device) -> Tensor:
        """int64 [3, B]: starts, counts, ends."""
        endless = 2**42  # larger than any position, also when it is multiplied by a rate
        ends = [endless if part.end is None else part.end for part in parts]
        return torch.tensor([[part.start for part in parts], [part.count for part in parts], ends], device=device)

    def around(self, x: Tensor, left: int, right: int) -> Tensor:
        extended = self._extended(self._inside(x), left + right)
        self.delay += right
        return extended

    def raise_rate(self, factor: int, cut: int) -> int:
        self._rate *= factor
        self.delay = factor * self.delay + cut
        return 0

    def wait(self, x: Tensor, since: int) -> Tensor:
        return self._extended(x, self.delay - since)[:, :, : x.shape[2]]

    def kept(self) -> Tensor:
        """[B, numbers]: what the next call goes on from."""
        return torch.cat(self._kept, dim=1)

    def _inside(self, x: Tensor) -> Tensor:
        """Zeros at positions that are not of the signal. In the middle of all signals, as it is."""
        rate = self._rate
        if self._parts is not None and all(
            part.start * rate >= self.delay and (part.end is None or (part.start + self._most) * rate - self.delay <= part.end * rate)
            for part in self._parts
        ):
            return x
        position = (rate * self._starts - self.delay)[:, None] + torch.arange(x.shape[2], device=x.device)
        return torch.where(((position >= 0) & (position < rate * self._ends[:, None]))[:, None], x, 0.0)

    def _extended(self, x: Tensor, history: int) -> Tensor:
        """[B, C, history + N]. Keeps the last ``history`` positions of what each row has of its own."""
        if not history:
            return x
        batch, channels, size = x.shape
        if self._stored is None:
            old = x.new_zeros(batch, channels, history)
        else:
            old = self._stored[:, self._place : self._place + channels * history].view(batch, channels, history)
            self._place += math.prod(old.shape[1:])
        extended = torch.cat([old, x], dim=2)
        if self._parts is not None and all(part.count == self._most for part in self._parts):
            last = extended[:, :, size:]
        else:
            index = self._rate * self._counts[:, None] + torch.arange(history, device=x.device)
            last = extended.gather(2, index[:, None].expand(-1, channels, -1))
        self._kept.append(last.flatten(1))
        return extended
