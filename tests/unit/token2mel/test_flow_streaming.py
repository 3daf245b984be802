"""Incremental, batched and bounded streaming equal the plain computation of the same frames, with the flows of both families."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.token2mel.batching import Buckets, Span
from bistream.token2mel.solving import SpanBatch
from bistream.token2mel.stage import FlowHop, FlowStage
from tests.unit.token2mel.flow_fixtures import (
    CHECKPOINT,
    DIT_CHECKPOINT,
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
def stage(network: str, left_context_chunks: int = 0) -> FlowStage:
    return make(network, left_context_chunks=left_context_chunks)


def make(network: str, **options: Any) -> FlowStage:
    return make_stage(checkpoint=DIT_CHECKPOINT if network == "dit" else CHECKPOINT, **options)


of_every_network = pytest.mark.parametrize("network", ["unet", "dit"])


@of_every_network
@settings(max_examples=4)
@given(prompt_tokens=prompt_sizes, sizes=hop_sizes, left=st.sampled_from([0, 0, 1, 2]), final=st.booleans())
def test_stored_state_equals_the_whole_prefix(network: str, prompt_tokens: int, sizes: list[int], left: int, final: bool) -> None:
    prompt, tokens = make_prompt(prompt_tokens), make_tokens(sum(sizes))
    subject, whole = stage(network, left), [*prompt.speech_tokens.tolist(), *tokens]
    state = subject.open(prompt)
    emitted = seen = 0
    for index, size in enumerate(sizes):
        last = final and index == len(sizes) - 1
        seen += size
        mel = hop_mel(subject, state, tokens[seen - size : seen], last)
        end = max(0, seen - (0 if last else 3))
        assert mel.shape == (MEL_BINS, 2 * end - emitted)
        if mel.shape[1]:
            known = prompt_tokens + seen
            (expected,) = subject.runner.compute([Span(whole[:known], 0, prompt_tokens + end, prompt)])  # reads and keeps no state
            assert isinstance(expected, torch.Tensor)
            assert_same(mel, expected[:, 2 * prompt_tokens + emitted :])
        emitted += mel.shape[1]
        subject.check_integrity()
    state.close()
    subject.check_integrity()


@of_every_network
@settings(max_examples=3)
@given(sessions=st.lists(st.tuples(prompt_sizes, hop_sizes, st.integers(0, 2)), min_size=2, max_size=4), left=st.sampled_from([0, 1]))
def test_a_batch_equals_its_sessions_alone(network: str, sessions: list[tuple[int, list[int], int]], left: int) -> None:
    """Sessions with different voices, positions and hop sizes share calls; each starts some hops after the others."""
    subject = stage(network, left)
    pieces = [cut(make_tokens(sum(sizes), seed), sizes) for seed, (_, sizes, _) in enumerate(sessions)]
    prompts = [make_prompt(tokens, seed) for seed, (tokens, _, _) in enumerate(sessions)]
    alone = [run(subject, prompt, hops) for prompt, hops in zip(prompts, pieces, strict=True)]
    states = [subject.open(prompt) for prompt in prompts]
    for step in range(max(delay + len(sizes) for _, sizes, delay in sessions)):
        due = [row for row, (_, sizes, delay) in enumerate(sessions) if 0 <= step - delay < len(sizes)]
        at = {row: step - sessions[row][2] for row in due}
        hops = [FlowHop(states[row], pieces[row][at[row]], at[row] == len(pieces[row]) - 1) for row in due]
        for row, mel in zip(due, subject.hop(hops), strict=True):
            assert_same(mel, alone[row][at[row]])
    for state in states:
        state.close()
    subject.check_integrity()


@of_every_network
def test_a_voices_state_is_computed_once_and_shared(network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    subject, prompt, tokens = make(network), make_prompt(80, seed=9), make_tokens(15)
    expected = run(make(network), prompt, [tokens])[0]
    subject.warm(prompt)
    lengths: list[int] = []
    begin = subject.runner.begin

    def recorded(batch: Sequence[Span]) -> SpanBatch:
        lengths.extend(span.length for span in batch)
        return begin(batch)

    monkeypatch.setattr(subject.runner, "begin", recorded)
    states = [subject.open(prompt), subject.open(prompt)]
    for mel in subject.hop([FlowHop(state, tokens, True) for state in states]):
        assert_same(mel, expected)
    assert lengths == [80 - 75 + 15] * 2
    for state in states:
        state.close()
    subject.check_integrity()


def test_an_utterance_without_tokens_is_empty() -> None:
    assert run(stage("unet"), make_prompt(30), [[]])[0].shape == (MEL_BINS, 0)
    assert stage("unet").synthesize([], make_prompt(30)).shape == (MEL_BINS, 0)


@of_every_network
def test_padding_to_buckets_changes_nothing(network: str) -> None:
    """As on a GPU, where the plain networks run on padded shapes."""
    subject = make(network)
    subject.runner.buckets = Buckets(token_step=8, chunk_step=4)
    prompts, pieces = [make_prompt(size, size) for size in (0, 40, 80)], cut(make_tokens(100), [31, 37, 32])
    states = [subject.open(prompt) for prompt in prompts]
    expected = [run(stage(network), prompt, pieces) for prompt in prompts]
    for index, piece in enumerate(pieces):
        for row, mel in enumerate(subject.hop([FlowHop(state, piece, index == 2) for state in states])):
            assert_same(mel, expected[row][index])


def test_bounded_context_costs_constant_memory_and_changes_the_result() -> None:
    subject, unlimited = stage("unet", 1), stage("unet")
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
