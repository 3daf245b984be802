"""CosyVoice3's flow behind the same stage: streaming equals the chunk-masked computation of whole prefixes, whatever the hops are."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bistream.checkpoints.config import DitFlowConfig
from bistream.errors import BusyError, CheckpointError, EngineError
from bistream.token2mel.batching import Buckets
from bistream.token2mel.dit.network import DitFlow
from bistream.token2mel.dit.pages import DitPages, page_bytes
from bistream.token2mel.dit.weights import build_network, expected_shapes
from bistream.token2mel.flow import FlowBatch
from bistream.token2mel.page_pool import FIRST_PAGE
from bistream.token2mel.stage import FlowHop, FlowStage
from tests.unit.token2mel.flow_fixtures import (
    DIT_CHECKPOINT,
    MEL_BINS,
    TINY_DIT,
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
from tests.unit.token2mel.random_weights import random_state
from tests.unit.token2mel.test_interruptions import ROUNDS, make_groups
from tests.unit.token2mel.test_interruptions import sizes as sizes_of_hops

CPU = torch.device("cpu")


@functools.cache
def stage(incremental: bool = True, left_context_chunks: int = 0, final_mode: str = "streaming") -> FlowStage:
    return make_stage(incremental=incremental, left_context_chunks=left_context_chunks, final_mode=final_mode, checkpoint=DIT_CHECKPOINT)


@settings(max_examples=6, deadline=None)
@given(prompt_tokens=prompt_sizes, sizes=hop_sizes, left=st.sampled_from([0, 0, 1, 2]), final=st.booleans())
def test_incremental_equals_the_whole_prefix(prompt_tokens: int, sizes: list[int], left: int, final: bool) -> None:
    prompt, tokens = make_prompt(prompt_tokens), make_tokens(sum(sizes))
    incremental, plain = stage(True, left), stage(False, left)
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


@settings(max_examples=4, deadline=None)
@given(sessions=st.lists(st.tuples(prompt_sizes, hop_sizes, st.integers(0, 2)), min_size=2, max_size=4), left=st.sampled_from([0, 1]))
def test_a_batch_equals_its_sessions_alone(sessions: list[tuple[int, list[int], int]], left: int) -> None:
    """Sessions with different voices, positions and hop sizes share calls; each starts some hops after the others."""
    subject = stage(True, left)
    pieces = [cut(make_tokens(sum(sizes), seed), sizes) for seed, (_, sizes, _) in enumerate(sessions)]
    prompts = [make_prompt(tokens, seed) for seed, (tokens, _, _) in enumerate(sessions)]
    alone = [run(subject, prompt, hops) for prompt, hops in zip(prompts, pieces, strict=True)]
    states = [subject.open(prompt) for prompt in prompts]
    for step in range(max(delay + len(sizes) for _, sizes, delay in sessions)):
        due = [row for row, (_, sizes, delay) in enumerate(sessions) if 0 <= step - delay < len(sizes)]
        at = {row: step - sessions[row][2] for row in due}
        hops = [FlowHop(states[row], pieces[row][at[row]], at[row] == len(pieces[row]) - 1) for row in due]
        for row, mel in zip(due, subject.hop(hops), strict=True):
            assert isinstance(mel, Tensor)
            assert_same(mel, alone[row][at[row]])
    for state in states:
        state.close()
    subject.check_integrity()


@settings(max_examples=3, deadline=None)
@given(hops=st.lists(sizes_of_hops, min_size=2, max_size=3), turns=st.lists(st.integers(0, 2), max_size=40))
def test_any_interleaving_of_solver_steps_is_bit_equal(hops: list[list[tuple[int, ...]]], turns: list[int]) -> None:
    alone = make_stage(checkpoint=DIT_CHECKPOINT)
    expected = make_groups(alone, hops)
    for group in expected:
        while group.step(alone):
            pass
    subject = make_stage(checkpoint=DIT_CHECKPOINT)
    groups = make_groups(subject, hops)
    for turn in turns:
        groups[turn % len(groups)].step(subject)
        subject.check_integrity()
    while any([group.step(subject) for group in groups]):
        pass
    for found, exact in zip(groups, expected, strict=True):
        assert len(found.mels) == len(exact.mels) == ROUNDS
        for mels, others in zip(found.mels, exact.mels, strict=True):
            assert all(torch.equal(mel, other) for mel, other in zip(mels, others, strict=True))
    subject.check_integrity()


@pytest.mark.parametrize("prompt_tokens", [0, 37, 150])
def test_a_hop_larger_than_the_rest_commits_several_chunks(prompt_tokens: int) -> None:
    subject, prompt, tokens = stage(), make_prompt(prompt_tokens), make_tokens(140)
    state = subject.open(prompt)
    hop_mel(subject, state, tokens[:100])
    assert state.committed == (prompt_tokens + 97) // 25 * 25
    found = hop_mel(subject, state, tokens[100:], True)
    assert_same(found, run(stage(False), prompt, [tokens])[0][:, 2 * 97 :])
    state.close()
    subject.check_integrity()


def test_the_last_hop_in_the_references_mode_is_the_offline_result() -> None:
    subject, prompt, tokens = stage(True, 0, "reference"), make_prompt(37), make_tokens(60)
    first, last = run(subject, prompt, cut(tokens, [40, 20]))
    assert_same(last, subject.synthesize(tokens, prompt)[:, first.shape[1] :], 0)
    streamed = run(stage(), prompt, cut(tokens, [40, 20]))
    assert_same(first, streamed[0])
    assert (last - streamed[1]).abs().max() > 1e-3  # the two modes are not interchangeable


def test_padding_to_buckets_changes_nothing() -> None:
    """As on a GPU, where the plain network runs on padded shapes."""
    subject = make_stage(checkpoint=DIT_CHECKPOINT)
    subject.runner.buckets = Buckets(token_step=8, chunk_step=4)
    prompts, pieces = [make_prompt(size, size) for size in (0, 40, 80)], cut(make_tokens(100), [31, 37, 32])
    states = [subject.open(prompt) for prompt in prompts]
    expected = [run(stage(), prompt, pieces) for prompt in prompts]
    for index, piece in enumerate(pieces):
        for row, mel in enumerate(subject.hop([FlowHop(state, piece, index == 2) for state in states])):
            assert isinstance(mel, Tensor)
            assert_same(mel, expected[row][index])


def test_the_offline_solver_pauses_often_and_gives_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    subject, prompt, tokens = make_stage(checkpoint=DIT_CHECKPOINT), make_prompt(30), make_tokens(50)
    expected = subject.synthesize(tokens, prompt)
    monkeypatch.setattr("bistream.token2mel.runner.MAX_SCORES", {"cpu": 160 * 40})
    steps, pauses = subject.synthesis(tokens, prompt), 0
    with pytest.raises(StopIteration) as end:
        while True:
            next(steps)
            pauses += 1
    assert_same(end.value.value, expected)
    assert pauses > TINY_DIT.n_timesteps * TINY_DIT.dit.depth * 3


def test_a_voices_state_is_computed_once_and_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    subject, prompt, tokens = stage(), make_prompt(80, seed=9), make_tokens(15)
    expected = run(make_stage(checkpoint=DIT_CHECKPOINT), prompt, [tokens])[0]
    subject.warm(prompt)
    lengths: list[int] = []
    conditions = DitFlow.conditions

    def counted(self: DitFlow, batch: FlowBatch) -> Tensor:
        lengths.extend(batch.lengths.tolist())
        return conditions(self, batch)

    monkeypatch.setattr(DitFlow, "conditions", counted)
    states = [subject.open(prompt), subject.open(prompt)]
    for mel in subject.hop([FlowHop(state, tokens, True) for state in states]):
        assert isinstance(mel, Tensor)
        assert_same(mel, expected)
    assert states[0].account.prefix is states[1].account.prefix
    assert lengths == [80 - 75 + 15] * 2
    for state in states:
        state.close()
    subject.check_integrity()


@pytest.mark.parametrize("prompt_tokens", [10, 60])
def test_non_finite_numbers_fail_their_session_only(prompt_tokens: int) -> None:
    """With 60 prompt tokens the fault occurs in the shared prompt state, with 10 in the hop itself; its pages harm nobody later."""
    subject, tokens = make_stage(checkpoint=DIT_CHECKPOINT), make_tokens(30)
    healthy = make_prompt(prompt_tokens)
    features = healthy.speech_feat.copy()
    features[-1] = np.nan
    expected = run(subject, healthy, [tokens], last_is_final=False)
    states = [subject.open(prompt) for prompt in (dataclasses.replace(healthy, speech_feat=features), healthy)]
    bad, good = subject.hop([FlowHop(state, tokens, False) for state in states])
    assert isinstance(bad, EngineError)
    assert_same(good, expected[0])
    for state in states:
        state.close()
    subject.check_integrity()
    for seed in range(4):  # reuse its pages
        other = make_prompt(60, seed)
        assert_same(run(subject, other, cut(tokens * 3, [60, 30]))[1], run(stage(False), other, [tokens * 3])[0][:, 2 * 57 :])


def test_a_session_that_outgrows_the_pool_forgets_its_oldest_speech() -> None:
    small = make_stage(flow_state_mb=2, checkpoint=DIT_CHECKPOINT)
    rest = small.pool.total - 5
    small.pool.take(small.pool.open(rest, b"", 0), rest)  # another owner holds them
    small.reserve_chunks = 0
    prompt, pieces = make_prompt(30), cut(make_tokens(240), [40] * 6)
    state = small.open(prompt)
    expected = run(stage(), prompt, pieces)
    exact = []
    for index, (piece, other) in enumerate(zip(pieces, expected, strict=True)):
        mel = hop_mel(small, state, piece, index == 5)
        assert mel.shape == other.shape and torch.isfinite(mel).all()
        exact.append(torch.allclose(mel, other, atol=1e-4))
        small.check_integrity()
    assert state.has_forgotten and exact == sorted(exact, reverse=True) and 0 < sum(exact) < len(exact)
    state.close()


def test_open_refuses_what_it_cannot_guarantee() -> None:
    subject = make_stage(flow_state_mb=10, reserve_tokens=250, checkpoint=DIT_CHECKPOINT)
    states = []
    with pytest.raises(BusyError):
        for seed in range(1000):
            states.append(subject.open(make_prompt(60, seed)))
    assert len(states) == subject.pool.total // (10 + 2) > 1
    for state in states:
        state.close()
    assert subject.pool.available == subject.pool.total


@pytest.mark.parametrize("dtype, floor_db", [("bfloat16", 40), ("float16", 58)])
def test_16_bit_stays_close_to_float32(dtype: str, floor_db: float) -> None:
    prompt, pieces = make_prompt(50), cut(make_tokens(90), [30, 30, 30])
    exact = torch.cat(run(stage(), prompt, pieces), dim=1)
    half = torch.cat(run(make_stage(dtype=dtype, checkpoint=DIT_CHECKPOINT), prompt, pieces), dim=1)
    assert half.dtype == torch.float32
    assert 10 * torch.log10(exact.pow(2).sum() / (half - exact).pow(2).sum()) > floor_db


def test_16_bit_state_gives_what_16_bit_without_state_gives() -> None:
    """State is stored in the form in which new frames attend to each other: it adds no rounding, only another order of sums."""
    prompt, pieces = make_prompt(50), cut(make_tokens(90), [30, 30, 30])
    found, plain = (
        torch.cat(run(make_stage(dtype="float16", checkpoint=DIT_CHECKPOINT, incremental=incremental), prompt, pieces), dim=1)
        for incremental in (True, False)
    )
    assert 10 * torch.log10(plain.pow(2).sum() / (found - plain).pow(2).sum()) > 62


def test_state_takes_less_than_50_mb_per_second_of_audio() -> None:
    """At full size in 16 bit: the block inputs of 50 frames, and what the position convolutions need to go on."""
    found = page_bytes(DitFlowConfig(), torch.float16)
    blocks, convolutions = 10 * 2 * 22 * 50 * 1024 * 2, 10 * 2 * 30 * 2 * 1024 * 2
    assert found == blocks + convolutions
    assert (round(blocks / 1e6, 2), round(found / 1e6, 2)) == (45.06, 47.51)
    assert found <= 50e6


def test_the_budget_counts_what_the_pages_take() -> None:
    pages = DitPages(TINY_DIT, 3, torch.float16, CPU)
    assert pages.context.nbytes + pages.tail.nbytes == (3 + FIRST_PAGE) * page_bytes(TINY_DIT, torch.float16)
    subject = make_stage(flow_state_mb=8, checkpoint=DIT_CHECKPOINT)
    assert subject.pool.total == 8 * 2**20 // page_bytes(TINY_DIT, torch.float32)


def test_the_network_has_the_released_keys_and_sizes() -> None:
    """Numbers of the released file, as its users report them."""
    shapes = expected_shapes(DitFlowConfig())
    assert len(shapes) == 330
    assert sum(int(np.prod(shape)) for shape in shapes.values()) == 332_257_088 + 32


def test_the_time_embeddings_weights_are_not_kept() -> None:
    network = build_network(random_state(TINY_DIT), TINY_DIT, CPU, torch.float32)
    assert not [name for name, _ in network.named_parameters() if "modulation" in name or "time" in name]
    assert network.matching.modulations.shape == (TINY_DIT.n_timesteps, (6 * TINY_DIT.dit.depth + 2) * TINY_DIT.dit.dim)


@pytest.mark.parametrize("change", [{"mel_dim": 64}, {"mu_dim": 40}, {"dim": 40}, {"dim_head": 7}, {"static_chunk_size": 51}])
def test_sizes_that_do_not_fit_are_refused(change: dict[str, int]) -> None:
    sizes = dataclasses.replace(TINY_DIT, dit=dataclasses.replace(TINY_DIT.dit, **change))
    with pytest.raises(CheckpointError, match="The yaml is at fault"):
        build_network({}, sizes, CPU, torch.float32)
