"""Sampling as ``transformers`` does it: temperature, then the ``top_k`` best, then as few of these as have ``top_p`` together.

Unlike nucleus sampling (``text2token.sampler``), ``top_p`` is a share of what ``top_k`` has left. Ties are resolved as there: of
candidates equal to the last of ``top_k`` all stay, and of equal ones at the end of ``top_p`` those that the same sort puts last. On a GPU
ties are resolved by their order among the best, which saves the sort of a whole vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bistream.checkpoints.config import LanguageModelConfig
from bistream.checkpoints.one_table import OneTableConfig
from bistream.text2token.sampler import SMALLEST_TEMPERATURE, RepetitionAwareSampler, Sampler, SamplerState, draw, uniforms

HISTORY = 1  # decided ids that are kept; none is looked at


def kept_scores(scores: Tensor, top_k: Tensor, top_p: Tensor, width: int) -> Tensor:
    """scores [n, V], divided by the temperature; top_k int64 [n], at most ``width``; top_p [n] -> the same with minus infinity for what is
    left out. A ``top_k`` above V leaves out nothing; that of a padding row is 0.

    Source: TopKLogitsWarper and TopPLogitsWarper of transformers 4.46 (generation/logits_process.py).
    """
    best = scores.topk(min(width, scores.shape[-1]), dim=-1).values
    last = best.gather(1, top_k.clamp(1, best.shape[-1])[:, None] - 1)
    scores = scores.masked_fill(scores < last, -torch.inf)
    ascending, order = torch.sort(scores, dim=-1)
    left_out = ascending.softmax(dim=-1).cumsum(dim=-1) <= _rest_of(top_p)[:, None]
    left_out[:, -1] = False
    return scores.masked_fill(torch.zeros_like(left_out).scatter(1, order, left_out), -torch.inf)


def weights_of_best(scores: Tensor, top_k: Tensor, top_p: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The same but for ties: probabilities, not normalised, and rows of the ``width`` best [n, width], in the order of the rows.

    What is left out has probability 0.
    """
    best, rows = scores.topk(min(width, scores.shape[-1]), dim=-1)
    rank = torch.arange(best.shape[-1], device=scores.device)
    probs = best.masked_fill(rank >= top_k.clamp(min=1)[:, None], -torch.inf).softmax(dim=-1)
    before = torch.nn.functional.pad(probs.cumsum(dim=-1)[:, :-1], (1, 0))
    rows, order = rows.sort(dim=-1)
    return torch.where(before < top_p[:, None], probs, 0.0).gather(1, order), rows


def _rest_of(share: Tensor) -> Tensor:
    """1 - share, as exact as of the decimal that a request wrote: float32 has rounded it, and a sum of ties may be just as much."""
    return (1.0 - (share.double() * 1e6).round() / 1e6).float()


def make_sampler(config: LanguageModelConfig, device: torch.device, exact: bool = True) -> Sampler:
    """What a checkpoint's sequences are sampled with, in any family. exact: ties are resolved as in ``transformers``."""
    if not isinstance(config, OneTableConfig):
        return RepetitionAwareSampler()
    sampler = TopKTopPSampler(config.temperature, exact)
    return PhasedSampler(config.voice_phases, sampler, device) if config.makes_voices else sampler


class TopKTopPSampler:
    """A ``sampler.Sampler``. temperature 0 is arg-max. usual: ``LanguageModelConfig.temperature``."""

    history_size = HISTORY

    def __init__(self, usual: float, exact: bool) -> None:
        self._usual, self._exact = usual, exact
        self.compiles = not exact  # PyTorch 2.11's compiler fails on prefix sums over more than 8,192 scores

    def choose(self, log_probs: Tensor, state: SamplerState, slots: Tensor) -> Tensor:
        greedy = state.temperature[slots] < SMALLEST_TEMPERATURE
        scores = log_probs / torch.where(greedy, 1.0, self._usual * state.temperature[slots])[:, None]
        kept = scores, state.top_k[slots], state.top_p[slots], state.top_k_in_use
        uniform = uniforms(state.key[slots], state.num_decided[slots])[:, 0]
        if self._exact:
            chosen = draw(kept_scores(*kept).softmax(dim=-1), uniform)
        else:
            weights, rows = weights_of_best(*kept)
            chosen = rows.gather(1, draw(weights, uniform)[:, None])[:, 0]
        return torch.where(greedy, log_probs.argmax(dim=-1), chosen)


class PhasedSampler:
    """Rows of the head by the number of ids that a sequence has decided: id i is one of ``phases[min(i, last)]``."""

    history_size = HISTORY

    def __init__(self, phases: Sequence[range], inner: TopKTopPSampler, device: torch.device) -> None:
        self._bounds = torch.tensor([(phase.start, phase.stop) for phase in phases], device=device)
        self._inner, self.compiles = inner, inner.compiles

    def choose(self, log_probs: Tensor, state: SamplerState, slots: Tensor) -> Tensor:
        bounds = self._bounds[state.num_decided[slots].clamp(max=len(self._bounds) - 1)]
        rows = torch.arange(log_probs.shape[-1], device=log_probs.device)
        inside = (rows >= bounds[:, :1]) & (rows < bounds[:, 1:])
        return self._inner.choose(torch.where(inside, log_probs, -torch.inf), state, slots)
