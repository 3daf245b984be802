"""Vectors to tokens and back: semantic tokens by the nearest code (VQ), global tokens by rounding each dimension (FSQ)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bistream.bicodec.config import QuantizerSizes

# Mentzer et al., "Finite scalar quantization" (2023), with the margin of the library that upstream uses.
BOUND_MARGIN = 1e-3


class Codebook(nn.Module):
    """Not ``nn.Embedding``: the random numbers that it starts with cost seconds of imports where networks are made without storage."""

    def __init__(self, sizes: QuantizerSizes) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(sizes.codes, sizes.code_size))


class SemanticQuantizer(nn.Module):
    """A code is chosen by direction alone, and decoded with its length."""

    def __init__(self, sizes: QuantizerSizes) -> None:
        super().__init__()
        self.in_project = nn.Conv1d(sizes.input_size, sizes.code_size, 1)
        self.out_project = nn.Conv1d(sizes.code_size, sizes.input_size, 1)
        self.codebook = Codebook(sizes)

    def tokens(self, x: Tensor) -> Tensor:
        """[B, input_size, T] -> int64 [B, T]; of equally near codes the first."""
        directions = F.normalize(self.in_project(x).transpose(1, 2), dim=-1)
        codes = F.normalize(self.codebook.weight, dim=-1)
        distances = directions.square().sum(-1, keepdim=True) - 2 * directions @ codes.T + codes.square().sum(-1)
        return distances.argmin(dim=-1)

    def vectors(self, tokens: Tensor) -> Tensor:
        """int64 [B, T] -> [B, input_size, T]."""
        output: Tensor = self.out_project(self.codebook.weight[tokens].transpose(1, 2))
        return output


class ScalarQuantizer:
    """levels: values of each dimension. The first dimension is the least significant digit of a token."""

    def __init__(self, levels: tuple[int, ...]) -> None:
        self._levels = levels
        self._basis = [math.prod(levels[:place]) for place in range(len(levels))]

    def bounded(self, x: Tensor) -> Tensor:
        """float [..., dimensions] -> values that round to a level: squashed into its range by tanh, where zero stays zero."""
        levels = x.new_tensor(self._levels)
        half = (levels - 1) * (1 + BOUND_MARGIN) / 2
        offset = torch.where(levels % 2 == 0, 0.5, 0.0)
        return (x + (offset / half).atanh()).tanh() * half - offset

    def tokens(self, x: Tensor) -> Tensor:
        """float [..., dimensions] -> int64 [...]."""
        levels, basis = (torch.tensor(numbers, device=x.device) for numbers in (self._levels, self._basis))
        return ((self.bounded(x).round().long() + levels // 2) * basis).sum(-1)

    def values(self, tokens: Tensor) -> Tensor:
        """int [...] -> float32 [..., dimensions], from -1 on."""
        levels, basis = (torch.tensor(numbers, device=tokens.device) for numbers in (self._levels, self._basis))
        halves = levels // 2
        return (tokens[..., None] // basis % levels - halves) / halves
