"""Means of scores with their intervals, by bootstrap over sentences; differences of two forms are paired sentence by sentence. Pure.

A score of a sentence is a numerator and a denominator (errors and units; or a value and 1), a mean is the sum of the one over the sum of
the other. An interval holds the middle 95 % of what samples of the sentences, drawn with replacement, give.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DRAWS = 2000
_PERCENTILES = (2.5, 97.5)
Scores = Mapping[int, tuple[float, float]]  # by sentence: numerator, denominator


@dataclass(frozen=True)
class Estimate:
    """count: of sentences."""

    value: float
    low: float
    high: float
    count: int


def mean(scores: Scores) -> Estimate | None:
    """None: no sentence has the score, or nothing but zeros below."""
    return _estimate(len(scores), _values(scores, sorted(scores)))


def difference(scores: Scores, base: Scores) -> Estimate | None:
    """Mean of the first less mean of the second, over the sentences that both have, the same sentences in each sample."""
    numbers = sorted(scores.keys() & base.keys())
    return _estimate(len(numbers), _values(scores, numbers), _values(base, numbers))


def _values(scores: Scores, numbers: list[int]) -> NDArray[np.float64]:
    """[sentences, 2]"""
    return np.array([scores[number] for number in numbers], np.float64).reshape(-1, 2)


def _estimate(count: int, *values: NDArray[np.float64]) -> Estimate | None:
    if any(not each[:, 1].sum() for each in values):
        return None
    draws = np.random.default_rng(0).integers(0, count, (DRAWS, count))
    value, sampled = _difference([each.sum(0) for each in values]), _difference([each[draws].sum(1).T for each in values])
    with np.errstate(invalid="ignore"):
        low, high = np.nanpercentile(sampled, _PERCENTILES)
    return Estimate(float(value), float(low), float(high), count)


def _difference(sums: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """sums: numerators and denominators, of one or of two."""
    with np.errstate(invalid="ignore", divide="ignore"):
        means = [numerator / denominator for numerator, denominator in sums]
    found: NDArray[np.float64] = means[0] - means[1] if len(means) == 2 else means[0]
    return found
