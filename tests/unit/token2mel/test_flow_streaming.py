"""Incremental, batched and bounded streaming equal the plain computation of the same frames."""

from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.gpu.tier import Tier
from bistream.token2mel.batching import Buckets
from bistream.token2mel.stage import FlowHop, FlowStage
from tests.unit.token2mel.flow_fixtures import (
    MEL_BINS,
    assert_same,
    cut,
    hop_mel,
    hop_sizes,
    make_prompt,
    make_stage,
    make_tokens,
    prompt_sizes,
    run,
)


@functools.cache
def stage(incremental: bool = True, left_context_chunks: int = 0, final_mode: str = "streaming", tier: Tier = Tier.PLAIN) -> FlowStage:
    return make_stage(incremental=incremental, left_context_chunks=left_context_chunks, final_mode=final_mode, tier=tier)


both_tiers = pytest.mark.parametrize("tier", [Tier.PLAIN, Tier.GRAPHS], ids=lambda tier: tier.value)


@both_tiers
@settings(max_examples=6, deadline=None, derandomize=True)
@given(
    prompt_tokens=prompt_sizes,
    sizes=hop_sizes,
    left=st.sampled_from([0, 0, 1, 2]),
    final=st.booleans(),
)
def test_incremental_equals_the_whole_prefix(tier: Tier, prompt_tokens: int, sizes: list[int], left: int, final: bool) -> None:
    prompt, tokens = make_prompt(prompt_tokens), make_tokens(sum(sizes))
    incremental, plain = stage(True, left, tier=tier), stage(False, left)
    state = incremental.open(prompt)
    emitted = seen = 0
    for index, size in enumerate(sizes):
        last = final and index == len(sizes) - 1
        seen += size
        mel = hop_mel(incremental, state, tokens[seen - size : seen], last)
        expected = run(plain, prompt, [tokens[:seen]], last)[0]  # a new session: no state of earlier hops
        assert mel.shape == (MEL_BINS, 2 * max(0, seen - (0 if last else 3)) - emitted)
        assert_same(mel, expected[:, emitted:])
        emitted += mel.shape[1]
        incremental.check_integrity()
    state.close()
    incremental.check_integrity()


@both_tiers
@settings(max_examples=4, deadline=None, derandomize=True)
@given(
    sessions=st.lists(st.tuples(prompt_sizes, hop_sizes, st.integers(0, 2)), min_size=2, max_size=4),
    left=st.sampled_from([0, 1]),
)
def test_a_batch_equals_its_sessions_alone(tier: Tier, sessions: list[tuple[int, list[int], int]], left: int) -> None:
    """Sessions with different voices, positions and hop sizes share calls; each starts some hops after the others."""
    subject = stage(True, left, tier=tier)
    pieces = [cut(make_tokens(sum(sizes), seed), sizes) for seed, (_, sizes, _) in enumerate(sessions)]
    prompts = [make_prompt(tokens, seed) for seed, (tokens, _, _) in enumerate(sessions)]
    alone = [run(subject, prompt, hops) for prompt, hops in zip(prompts, pieces, strict=True)]
    states = [subject.open(prompt) for prompt in prompts]
    for step in range(max(delay + len(sizes) for _, sizes, delay in sessions)):
        due = [row for row, (_, sizes, delay) in enumerate(sessions) if 0 <= step - delay < len(sizes)]
        at = {row: step - sessions[row][2] for row in due}
        hops = [FlowHop(states[row], pieces[row][at[row]], at[row] == len(pieces[row]) - 1) for row in due]
        for row, mel in zip(due, subject.hop(hops), strict=True):
            assert isinstance(mel, torch.Tensor)
            assert_same(mel, alone[row][at[row]])
    for state in states:
        state.close()
    subject.check_integrity()


@both_tiers
@pytest.mark.parametrize("prompt_tokens", [0, 37, 160])
def test_a_hop_larger_than_the_rest_commits_several_chunks(tier: Tier, prompt_tokens: int) -> None:
    subject, plain = stage(tier=tier), stage(False)
    prompt, tokens = make_prompt(prompt_tokens), make_tokens(140)
    state = subject.open(prompt)
    hop_mel(subject, state, tokens[:100])
    assert state.committed == (prompt_tokens + 97) // 25 * 25
    found = hop_mel(subject, state, tokens[100:], True)
    assert_same(found, run(plain, prompt, [tokens])[0][:, 2 * 97 :])
    state.close()
    subject.check_integrity()


@pytest.mark.parametrize("incremental, tier", [(True, Tier.PLAIN), (False, Tier.PLAIN), (True, Tier.GRAPHS)])
def test_reference_final_mode_is_the_offline_result(incremental: bool, tier: Tier) -> None:
    subject = stage(incremental, 0, "reference", tier)
    prompt, tokens = make_prompt(37), make_tokens(60)
    first, last = run(subject, prompt, cut(tokens, [40, 20]))
    assert_same(last, subject.synthesize(tokens, prompt)[:, first.shape[1] :], 0)
    streamed = run(stage(), prompt, cut(tokens, [40, 20]))
    assert_same(first, streamed[0])
    assert (last - streamed[1]).abs().max() > 1e-3  # the two modes are not interchangeable


@pytest.mark.parametrize("prompt_tokens, count", [(0, 1), (50, 2), (0, 3), (50, 26)])
def test_short_utterances_in_one_final_hop(prompt_tokens: int, count: int) -> None:
    prompt, tokens = make_prompt(prompt_tokens), make_tokens(count)
    found = run(stage(), prompt, [tokens])[0]
    assert found.shape == (MEL_BINS, 2 * count)
    assert_same(found, run(stage(False), prompt, [tokens])[0])


def test_the_final_hop_brings_the_rest_without_new_tokens() -> None:
    tokens = make_tokens(28)
    held = run(stage(), make_prompt(25), [tokens, []])
    assert [mel.shape[1] for mel in held] == [50, 6]
    assert_same(held[1], run(stage(False), make_prompt(25), [tokens])[0][:, 50:])


def test_an_utterance_without_tokens_is_empty() -> None:
    assert run(stage(), make_prompt(30), [[]])[0].shape == (MEL_BINS, 0)
    assert stage().synthesize([], make_prompt(30)).shape == (MEL_BINS, 0)


def test_padding_to_buckets_changes_nothing() -> None:
    subject = make_stage()
    subject.runner.buckets = Buckets(token_step=8, chunk_step=4)
    prompts, pieces = [make_prompt(size, size) for size in (0, 40, 80)], cut(make_tokens(100), [31, 37, 32])
    states = [subject.open(prompt) for prompt in prompts]
    expected = [run(stage(), prompt, pieces) for prompt in prompts]
    for index, piece in enumerate(pieces):
        for row, mel in enumerate(subject.hop([FlowHop(state, piece, index == 2) for state in states])):
            assert isinstance(mel, torch.Tensor)
            assert_same(mel, expected[row][index])


@both_tiers
def test_bounded_context_costs_constant_memory_and_changes_the_result(tier: Tier) -> None:
    subject, unlimited = stage(True, 1, tier=tier), stage()
    prompt, tokens = make_prompt(50), make_tokens(200)
    state = subject.open(prompt)
    mels = []
    for piece in cut(tokens, [40] * 5):
        mels.append(hop_mel(subject, state, piece))
        assert len(state.pages) <= 1 and len(state.account.pages) <= 1
    state.close()
    full = torch.cat(run(unlimited, prompt, cut(tokens, [40] * 5), False), dim=1)
    bounded = torch.cat(mels, dim=1)
    assert bounded.shape == full.shape
    assert (bounded - full).abs().max() > 1e-3
    subject.check_integrity()


@both_tiers
@pytest.mark.parametrize("dtype, floor_db", [("bfloat16", 40), ("float16", 58)])
def test_16_bit_stays_close_to_float32(dtype: str, floor_db: float, tier: Tier) -> None:
    """Floors are 7 dB below the measured values; a wrong cast of state or solver lands far below them."""
    prompt, pieces = make_prompt(50), cut(make_tokens(90), [30, 30, 30])
    exact = torch.cat(run(stage(), prompt, pieces), dim=1)
    half = torch.cat(run(make_stage(dtype=dtype, tier=tier), prompt, pieces), dim=1)
    assert half.dtype == torch.float32
    snr_db = 10 * torch.log10(exact.pow(2).sum() / (half - exact).pow(2).sum())
    assert snr_db > floor_db
