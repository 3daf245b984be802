"""Repetition-aware sampling against the golden nucleus sets and histograms of the reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bistream.text2token.engine import SamplingSpec, TokenSpace, TurnLimits
from bistream.text2token.sampler import RepetitionAwareSampler, SamplerState, nucleus
from bistream.text2token.sequence import SlotReset, TurnStart
from tests.parity import golden

CASES = golden.read_json("ras_sampling.json")["cases"]
DRAWS, BATCH = 5000, 1000
OFTEN = 20  # an id with at least this many draws of the reference is compared by itself
TOTAL_VARIATION = 0.05  # tests/golden/README.md


def log_probs(case: dict[str, Any]) -> torch.Tensor:
    return golden.tensors("ras_sampling")[f"logp_{case['case']}"]


def sampling_spec(case: dict[str, Any], seed: int = 0) -> SamplingSpec:
    return SamplingSpec(case["top_p"], case["top_k"], case["win_size"], case["tau_r"], seed=seed)


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["case"]))
def test_nucleus_ids_and_probabilities(case: dict[str, Any]) -> None:
    probs, head_rows = nucleus(
        log_probs(case)[None], torch.tensor([case["top_p"]]), torch.tensor([case["top_k"]]), width=case["top_k"] + 20
    )
    taken = probs[0] > 0
    assert head_rows[0][taken].tolist() == [head_row for head_row, _ in case["nucleus"]]
    expected = torch.tensor([probability for _, probability in case["nucleus"]])
    torch.testing.assert_close(probs[0][taken], expected, rtol=1e-5, atol=1e-8)


def draw_many(case: dict[str, Any], first_seed: int) -> torch.Tensor:
    """BATCH sessions with seeds from ``first_seed`` on and the same history ``case["decoded"]``; one draw each."""
    scores = log_probs(case)
    sampler = RepetitionAwareSampler()
    state = SamplerState(BATCH, TokenSpace(100, len(scores) - 3), sampler.history_size, torch.device("cpu"))
    resets = [SlotReset(str(slot), sampling_spec(case, first_seed + slot), ()) for slot in range(BATCH)]
    state.start_turns([TurnStart(slot, TurnLimits(10), 10, reset) for slot, reset in enumerate(resets)])
    decoded = case["decoded"][-sampler.history_size :]
    state.history[:, : len(decoded)] = torch.tensor(decoded, dtype=torch.int64)
    state.num_decided[:] = len(decoded)
    return sampler.choose(scores.expand(BATCH, -1), state, torch.arange(BATCH))


def exact_distribution(case: dict[str, Any]) -> torch.Tensor:
    """By the rule, in float64: draw from the nucleus; an id that is in the window is redrawn from all others."""
    full = torch.softmax(log_probs(case).double(), dim=0)
    nucleus_ids = torch.tensor([head_row for head_row, _ in case["nucleus"]])
    first = torch.zeros_like(full)
    first[nucleus_ids] = full[nucleus_ids] / full[nucleus_ids].sum()
    window = case["decoded"][-case["win_size"] :]
    result = first.clone()
    for head_row in nucleus_ids.tolist():
        if window.count(head_row) >= case["win_size"] * case["tau_r"]:
            others = full.clone()
            others[head_row] = 0
            result[head_row] -= first[head_row]
            result += first[head_row] * others / others.sum()
    return result


def total_variation(left: torch.Tensor, right: torch.Tensor, ids: list[int]) -> float:
    """Between two distributions over ``ids`` and "any other id"."""
    listed = torch.tensor(ids)
    rest = left[listed].sum() - right[listed].sum()
    return float((left[listed] - right[listed]).abs().sum() + rest.abs()) / 2


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["case"]))
def test_histogram(case: dict[str, Any]) -> None:
    """The reference's draws and ours, both against the exact distribution: compared with each other, the noise of the reference's
    4000 draws (0.03 to 0.04 where 25 ids are about equally likely) would use up most of the tolerance. The reference lists its
    most frequent ids only, and rare ones (of redraws from the whole vocabulary) are noise: they are compared together."""
    size = len(log_probs(case))
    drawn = torch.cat([draw_many(case, first_seed) for first_seed in range(0, DRAWS, BATCH)])
    ours = torch.bincount(drawn, minlength=size).double() / DRAWS
    theirs = torch.zeros(size, dtype=torch.float64)
    for head_row, count in case["histogram"].items():
        theirs[int(head_row)] = count / case["histogram_draws"]
    often = [int(head_row) for head_row, count in case["histogram"].items() if count >= OFTEN]
    exact = exact_distribution(case)
    assert total_variation(theirs, exact, often) < TOTAL_VARIATION
    assert total_variation(ours, exact, often) < TOTAL_VARIATION
