"""Means, intervals and paired differences."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.evaluation.statistics import difference, mean

Found = dict[int, tuple[float, float]]
PAIRS = st.tuples(st.integers(0, 5), st.integers(1, 5)).map(lambda pair: (min(pair), pair[1]))
SCORES = st.dictionaries(st.integers(0, 9), PAIRS, min_size=1)


@given(SCORES)
def test_a_mean_is_the_ratio_of_sums_and_inside_its_interval(scores: Found) -> None:
    found = mean(scores)
    assert found is not None and found.count == len(scores)
    assert found.value == pytest.approx(sum(one for one, _ in scores.values()) / sum(other for _, other in scores.values()))
    ratios = [one / other for one, other in scores.values()]
    assert min(ratios) - 1e-9 <= found.low <= found.high <= max(ratios) + 1e-9


@given(SCORES, SCORES)
def test_a_difference_is_over_the_sentences_of_both_and_turns_its_sign(one: Found, other: Found) -> None:
    found, turned = difference(one, other), difference(other, one)
    both = one.keys() & other.keys()
    if not both:
        assert found is None and turned is None
        return
    assert found is not None and turned is not None and found.count == len(both)
    assert found.value == pytest.approx(-turned.value) and found.low == pytest.approx(-turned.high)
    same = difference(one, one)
    assert same is not None and same.value == same.low == same.high == 0.0


def test_pairing_narrows_the_interval() -> None:
    """Sentences differ much, the forms always by the same: the difference is certain, the means are not."""
    base = {number: (float(number % 7), 10.0) for number in range(40)}
    worse = {number: (errors + 1.0, units) for number, (errors, units) in base.items()}
    found, alone = difference(worse, base), mean(base)
    assert found is not None and alone is not None
    assert found.value == pytest.approx(0.1) and found.high - found.low < 1e-9 < alone.high - alone.low


def test_nothing_has_no_mean() -> None:
    assert mean({}) is None and mean({1: (1.0, 0.0)}) is None
