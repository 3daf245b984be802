"""The arithmetic of the speech head, apart from TensorRT-LLM's classes so that it can be tested without them."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def padded_scores(hidden: Tensor, weight: Tensor, bias: Tensor, first: int, vocab_size: int) -> Tensor:
    """hidden [n, H], weight [R, H], bias [R] -> scores [n, vocab_size]: minus infinity outside rows ``first`` to ``first + R - 1``."""
    scores = functional.linear(hidden, weight, bias)
    return functional.pad(scores, (first, vocab_size - first - weight.shape[0]), value=float("-inf"))
