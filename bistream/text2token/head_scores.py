"""How well each attention head follows the text, measured on sequences that the language model has spoken. In plain PyTorch.

At every place whose next id is a speech token a head looks at one text id of the sequence, the one with the most weight among them. A
head that follows the text goes through it once, in order, and surely.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bistream.checkpoints.alignment import Head
from bistream.text2token.attention import attend_causal
from bistream.text2token.qwen2 import Qwen2Model

MOST_AHEAD = 2  # text ids: some are hardly spoken
LEAST_MONOTONY, LEAST_COVERAGE, LEAST_PEAK = 0.9, 0.7, 0.3  # random weights reach 0.8, 1 and 0.2, and never the first two in one head


@dataclass(frozen=True)
class HeadScore:
    """monotony: share of the steps to the same text id or to one of the next ``MOST_AHEAD``. coverage: share of the text ids that the head
    looks at. peak: mean of the largest weight, where the weights of the text ids add up to 1."""

    head: Head
    monotony: float
    coverage: float
    peak: float

    @property
    def total(self) -> float:
        """From 0 to 1."""
        return self.monotony * self.coverage * self.peak

    @property
    def follows(self) -> bool:
        """Whether it tells which text is spoken."""
        return self.monotony >= LEAST_MONOTONY and self.coverage >= LEAST_COVERAGE and self.peak >= LEAST_PEAK


def scores_of(weights: Tensor, skipped: int = 0) -> Tensor:
    """weights: [..., speech tokens, text ids], of one sequence; skipped: the first text ids, which are not spoken -> [..., 3]: monotony,
    coverage and peak."""
    peak, looked = weights.max(-1)
    steps = looked.diff(dim=-1)
    monotony = ((steps >= 0) & (steps <= MOST_AHEAD)).float().mean(-1)
    numbers = torch.arange(skipped, weights.shape[-1], device=weights.device)
    coverage = (looked[..., None] == numbers).any(-2).float().mean(-1)
    return torch.stack((monotony, coverage, peak.mean(-1)), dim=-1)


@torch.inference_mode()
def text_weights(model: Qwen2Model, ids: Sequence[int]) -> Tensor:
    """ids: a whole sequence of ``TokenSpace``, with two speech tokens or more -> [layers, heads, speech tokens, text ids]."""
    space, config = model.space, model.config
    every = torch.tensor(list(ids), device=model.device)
    texts = (every < space.text_vocab_size).nonzero()[:, 0]
    rows = torch.tensor([place for place, following in enumerate(ids[1:]) if space.is_speech(following)], device=model.device)
    comes_later = texts[None] > rows[:, None]
    found: list[Tensor] = []

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        own = key[texts].repeat_interleave(config.num_attention_heads // config.num_key_value_heads, dim=1)
        scores = torch.einsum("rhd,thd->hrt", query[rows].float(), own.float()) * config.head_size**-0.5
        found.append(scores.masked_fill(comes_later, -torch.inf).softmax(-1))
        return attend_causal(query, key, value)

    model.forward_embedded(model.embed(every), torch.arange(len(ids), device=model.device), attend)
    return torch.stack(found)


def best_head(kinds: Sequence[Sequence[Tensor]], heads: int) -> HeadScore:
    """The head that follows best. kinds: for each kind of layout, ``scores_of`` [layers, heads, 3] of each of its sequences. Its worst kind
    counts: in a layout where text and speech alternate, a head that looks back by a fixed distance seems to follow as well.
    """
    worst = torch.stack([torch.stack(list(each)).mean(0) for each in kinds]).amin(0).flatten(0, 1)
    scores = [HeadScore(divmod(number, heads), *values) for number, values in enumerate(worst.tolist())]
    return max(scores, key=lambda score: (score.follows, score.total))
