"""Sampler: random numbers, masks, repetition rule, the end of a turn on the device."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bistream.errors import InvalidInputError
from bistream.text2token.engine import SamplingSpec, TokenSpace, TurnLimits
from bistream.text2token.sampler import RepetitionAwareSampler, SamplerState, check_spec, draw, nucleus, seed_key, uniforms
from bistream.text2token.sequence import INACTIVE, NOT_FINITE, SlotReset, TurnStart
from tests.fakes import decided as ids_decided

SPACE = TokenSpace(text_vocab_size=30, speech_token_size=20)
EOS, FILL = 20, 22  # head rows
CPU = torch.device("cpu")
SAMPLER = RepetitionAwareSampler(history_size=8)


def make_state(*specs: SamplingSpec, limits: TurnLimits | None = None) -> SamplerState:
    state = SamplerState(len(specs), SPACE, SAMPLER.history_size, CPU)
    begin(state, *specs, limits=limits or TurnLimits(100))
    return state


def begin(state: SamplerState, *specs: SamplingSpec, limits: TurnLimits) -> None:
    resets = [SlotReset(str(slot), spec, ()) for slot, spec in enumerate(specs)]
    state.start_turns([TurnStart(slot, limits, limits.max_new_ids, reset) for slot, reset in enumerate(resets)])


def scores(seed: int, rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, SPACE.speech_token_size + 3, generator=torch.Generator().manual_seed(seed)) * 2


def splitmix64(state: int) -> int:
    """The published generator, on Python integers."""
    mask = (1 << 64) - 1
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & mask
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB & mask
    return state ^ (state >> 31)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 10**6))
def test_uniforms_are_splitmix64(seed: int, counter: int) -> None:
    mask = (1 << 64) - 1
    key = splitmix64((seed + 1) * 0x9E3779B97F4A7C15 & mask)
    assert seed_key(seed) & mask == key
    expected = [splitmix64((key + (2 * counter + index) * 0x9E3779B97F4A7C15) & mask) >> 41 for index in (1, 2)]
    got = uniforms(torch.tensor([seed_key(seed)]), torch.tensor([counter]))
    assert got[0].tolist() == [value * 2.0**-23 for value in expected]


def test_uniforms_are_uniform_over_seeds_and_counters() -> None:
    keys = torch.tensor([seed_key(seed) for seed in range(100)])
    values = torch.cat([uniforms(keys, torch.full((100,), counter)) for counter in range(100)])
    assert values.min() >= 0 and values.max() < 1
    counts = torch.histc(values, bins=20, min=0, max=1)
    chi_square = ((counts - 1000) ** 2 / 1000).sum()
    assert chi_square < 43.8  # 99.9 % quantile for 19 degrees of freedom; the values are fixed, so this test is not flaky
    correlation = torch.corrcoef(values.T)[0, 1].abs()
    assert correlation < 0.033  # 3.3 standard errors of 10,000 pairs


@given(st.lists(st.floats(0, 1, width=32), min_size=2, max_size=40), st.floats(0, 1, exclude_max=True, width=32))
def test_draw_never_returns_an_entry_of_weight_zero(weights: list[float], uniform: float) -> None:
    if not any(weight > 1e-30 for weight in weights):
        return
    tensor = torch.tensor([weights])
    index = int(draw(tensor, torch.tensor([uniform])))
    assert tensor[0, index] > 0


def test_nucleus_by_sum_before_and_by_count() -> None:
    log_probs = torch.tensor([0.4, 0.3, 0.2, 0.1]).log().repeat(4, 1)
    top_p, top_k = torch.tensor([0.35, 0.71, 1.0, 0.05]), torch.tensor([25, 25, 2, 25])
    probs, head_rows = nucleus(log_probs, top_p, top_k, width=4)
    assert (probs > 0).sum(dim=1).tolist() == [1, 3, 2, 1]
    assert head_rows[1].tolist() == [0, 1, 2, 3]


@given(st.integers(0, 10**6), st.integers(1, 7))
def test_a_row_does_not_depend_on_its_batch(seed: int, rows: int) -> None:
    """Slots, settings and histories of others change nothing, nor does a wider sort for another session's larger top_k."""
    specs = [SamplingSpec(seed=seed + index, top_k=1 + (seed + 5 * index) % 23, temperature=0.5 + index) for index in range(rows)]
    logits = scores(seed, rows)
    state, alone = make_state(*specs), make_state(specs[0])
    for _ in range(4):
        chosen = SAMPLER.choose(state.masked_log_probs(logits, torch.arange(rows))[0], state, torch.arange(rows))
        single = SAMPLER.choose(alone.masked_log_probs(logits[:1], torch.tensor([0]))[0], alone, torch.tensor([0]))
        assert chosen[0] == single[0]
        state.record(torch.arange(rows), chosen, torch.zeros(rows, dtype=torch.bool))
        alone.record(torch.tensor([0]), single, torch.zeros(1, dtype=torch.bool))


def test_a_repeated_id_is_redrawn_from_all_others() -> None:
    """One id has nearly all the probability: it is drawn first, then not again while it is in the window of 3."""
    logits = torch.full((1, 23), 0.0)
    logits[0, 4] = 30.0
    state = make_state(SamplingSpec(win_size=3, tau_r=0.1, seed=5))
    slots, drawn = torch.tensor([0]), []
    for _ in range(16):
        log_probs, bad = state.masked_log_probs(logits, slots)
        chosen = SAMPLER.choose(log_probs, state, slots)
        drawn.append(int(chosen))
        state.record(slots, chosen, bad)
        state.running[:] = True
    assert drawn[0::4] == [4] * 4 and 4 not in drawn[1:4] + drawn[5:8] + drawn[9:12]
    assert len(set(drawn)) > 6, "the redraw takes from everything, not from the nucleus of one"


@given(st.lists(st.integers(0, 19), max_size=40), st.integers(0, 8))
def test_window_counts_match_a_plain_list(decided: list[int], win_size: int) -> None:
    state = make_state(SamplingSpec(win_size=win_size), limits=TurnLimits(1000))
    for head_row in decided:
        state.record(torch.tensor([0]), torch.tensor([head_row]), torch.tensor([False]))
    window = decided[max(0, len(decided) - win_size) :]
    for head_row in range(0, 20, 3):
        assert int(state.window_counts(torch.tensor([0]), torch.tensor([head_row]))) == window.count(head_row)
    assert ids_decided(state, 0) == decided[-SAMPLER.history_size :]


def test_masks_follow_the_limits_of_the_turn() -> None:
    limits = TurnLimits(50, min_new_ids=2, forbidden=frozenset({SPACE.fill}), forbidden_early=frozenset({SPACE.eos, SPACE.specials[1]}))
    state = make_state(SamplingSpec(), limits=limits)
    slots = torch.tensor([0])
    for number in range(4):
        log_probs, _ = state.masked_log_probs(torch.zeros(1, 23), slots)
        early = number < 2
        assert torch.isinf(log_probs[0]).tolist() == [False] * 20 + [early, early, True]
        torch.testing.assert_close(log_probs[0, :20], torch.full((20,), 1 / 23).log())  # masked, not renormalised
        state.record(slots, torch.tensor([number]), torch.tensor([False]))


def test_record_ends_turns_on_the_device() -> None:
    """Stop id, length with a recorded fill, a row that is not finite; afterwards rows of these slots change nothing."""
    state = make_state(*[SamplingSpec()] * 4, limits=TurnLimits(2, record_on_length=SPACE.fill))
    slots, fine = torch.arange(4), torch.zeros(4, dtype=torch.bool)
    assert state.record(slots, torch.tensor([5, EOS, 6, 7]), torch.tensor([False, False, False, True])).tolist() == [5, EOS, 6, NOT_FINITE]
    assert state.running[:4].tolist() == [True, False, True, False]
    assert state.record(slots, torch.tensor([FILL, 1, 8, 1]), fine).tolist() == [FILL, INACTIVE, 8, INACTIVE]
    assert state.running.any().item() is False
    before = [column.clone() for column in (state.history, state.num_decided, state.last_id, state.num_new)]
    assert state.record(slots, torch.tensor([1, 2, 3, 4]), fine).tolist() == [INACTIVE] * 4
    assert all(torch.equal(*pair) for pair in zip(before, (state.history, state.num_decided, state.last_id, state.num_new), strict=True))
    assert [ids_decided(state, slot) for slot in range(4)] == [[5, FILL], [EOS], [6, 8, FILL], []]
    assert state.last_id[[0, 2]].tolist() == [SPACE.speech_offset + 5, SPACE.speech_offset + 8]


def test_draws_do_not_depend_on_how_the_session_is_cut_into_turns() -> None:
    logits, slots = scores(8), torch.tensor([0])

    def draws(turn_lengths: list[int]) -> list[int]:
        state = make_state(SamplingSpec(seed=9, tau_r=2.0), limits=TurnLimits(99, forbidden=frozenset(SPACE.specials)))
        for length in turn_lengths:
            limits = TurnLimits(length, forbidden=frozenset(SPACE.specials))
            state.start_turns([TurnStart(0, limits, length, None)])
            for _ in range(length):
                log_probs, bad = state.masked_log_probs(logits, slots)
                state.record(slots, SAMPLER.choose(log_probs, state, slots), bad)
        return ids_decided(state, 0)

    assert draws([8]) == draws([3, 5]) == draws([1] * 8)


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_rows_that_are_not_finite_are_reported_alone(poison: float) -> None:
    state = make_state(*[SamplingSpec(seed=3)] * 2)
    logits = scores(3).repeat(2, 1)
    expected = SAMPLER.choose(state.masked_log_probs(logits, torch.arange(2))[0], state, torch.arange(2))
    logits[1, 7] = poison
    log_probs, bad = state.masked_log_probs(logits, torch.arange(2))
    assert bad.tolist() == [False, True] and not torch.isnan(log_probs).any()
    assert SAMPLER.choose(log_probs, state, torch.arange(2))[0] == expected[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [("top_p", 0.0), ("top_p", 1.01), ("top_p", float("nan")), ("top_k", 0), ("temperature", -0.1), ("temperature", float("nan")),
     ("temperature", float("inf")), ("win_size", 9), ("win_size", -1), ("tau_r", -0.1), ("tau_r", float("nan")), ("seed", 2**63)],
)  # fmt: skip
def test_settings_out_of_range_are_refused(name: str, value: float) -> None:
    change: dict[str, Any] = {name: value}
    spec = dataclasses.replace(SamplingSpec(win_size=8), **change)
    with pytest.raises(InvalidInputError, match=name):
        check_spec(spec, SAMPLER.history_size, "session")


def test_draw_inverts_the_cumulative_sum() -> None:
    weights = torch.tensor([[1.0, 0.0, 2.0, 1.0]])
    drawn = [int(draw(weights, torch.tensor([uniform]))) for uniform in (0.0, 0.24, 0.25, 0.5, 0.74, 0.75, 0.99)]
    assert drawn == [0, 0, 2, 2, 2, 3, 3]


def test_threshold_of_the_repetition_rule() -> None:
    """tau_r 0.3 of a window of 4: ceil(1.2) = 2 occurrences are needed."""
    state = make_state(SamplingSpec(win_size=4, tau_r=0.3))
    assert int(state.min_repeats[0]) == 2
    for head_row in (7, 1, 2, 7, 3):
        state.record(torch.tensor([0]), torch.tensor([head_row]), torch.tensor([False]))
    counts = [int(state.window_counts(torch.tensor([0]), torch.tensor([head_row]))) for head_row in (7, 1, 3, 9)]
    assert counts == [1, 1, 1, 0], "the oldest of five is outside a window of four"
