"""Sampling among the best scores alone is sampling of all, but for ties."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from bistream.text2token.one_table.sampling import kept_scores, weights_of_best


@given(
    seed=st.integers(0, 2**31),
    settings=st.lists(st.tuples(st.integers(1, 60), st.floats(0.01, 1.0)), min_size=1, max_size=5),
    size=st.sampled_from([7, 40, 700]),
    spread=st.floats(0.1, 10.0),
)
def test_the_best_are_those_of_all(seed: int, settings: list[tuple[int, float]], size: int, spread: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    steps = torch.stack([torch.randperm(size, generator=generator) for _ in settings])  # no two are equal
    scores = spread * torch.special.ndtri((steps + 0.5) / size).float()
    top_k, top_p = torch.tensor([k for k, _ in settings]), torch.tensor([p for _, p in settings])
    expected = kept_scores(scores, top_k, top_p, 60).softmax(dim=-1)
    weights, rows = weights_of_best(scores, top_k, top_p, 60)
    assert (rows.diff(dim=-1) > 0).all(), "a draw is one of the same order"
    found = torch.zeros_like(scores).scatter(1, rows, weights / weights.sum(dim=-1, keepdim=True))
    # Where a sum of probabilities is top_p but for rounding, either may have one more, or some that are hardly possible.
    differ = (found > 0) != (expected > 0)
    hardly = (torch.where(differ, found + expected, 0.0)).sum(dim=-1) < 1e-6
    assert (hardly | (differ.sum(dim=-1) == 1)).all()
    torch.testing.assert_close(found[hardly], expected[hardly], rtol=1e-4, atol=1e-6)


def test_a_padding_row_is_finite() -> None:
    """Its settings are 0, and its choice is of no use to anybody."""
    assert torch.isfinite(weights_of_best(torch.randn(1, 9), torch.zeros(1, dtype=torch.int64), torch.zeros(1), 4)[0]).all()
