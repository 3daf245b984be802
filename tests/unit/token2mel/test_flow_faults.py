"""A fault stays within its session, and the page pool is consistent after every ending."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.errors import BusyError, EngineError, InvalidInputError
from bistream.token2mel.batching import Span
from bistream.token2mel.flow import FlowBatch, FlowNetwork
from bistream.token2mel.flow_matching import SolverState
from bistream.token2mel.memory import FlowMemory
from bistream.token2mel.solving import SpanBatch
from bistream.token2mel.stage import FlowHop, FlowStage
from bistream.token2mel.state import FlowState
from bistream.types import VoicePrompt
from tests.unit.token2mel.flow_fixtures import (
    DIT_CHECKPOINT,
    MEL_BINS,
    TINY,
    assert_same,
    cut,
    hop_mel,
    make_prompt,
    make_stage,
    make_tokens,
    run,
)
from tests.unit.token2mel.test_dit_graphs import graph_stage

MAKERS: dict[str, Callable[[], FlowStage]] = {
    "unet": make_stage,
    "dit": partial(make_stage, checkpoint=DIT_CHECKPOINT),
    "dit in graphs": graph_stage,
}


@pytest.fixture(scope="module", params=MAKERS)
def stage(request: pytest.FixtureRequest) -> FlowStage:
    return MAKERS[request.param]()


@pytest.fixture(scope="module")
def unet() -> FlowStage:
    """For tests that patch the network or compare with it."""
    return make_stage()


def _stage_with_pages(chunks: int, reserve_tokens: int = 100) -> FlowStage:
    """A stage with a small pool: the budget is in megabytes, so another owner holds the rest."""
    small = make_stage(flow_state_mb=2, reserve_tokens=reserve_tokens)
    rest = small.pool.total - chunks
    assert rest > 0
    small.pool.take(small.pool.open(rest, b"", 0), rest)
    return small


@pytest.mark.parametrize("token", [-1, TINY.vocab_size])
def test_a_token_out_of_range_fails_its_hop_only(stage: FlowStage, token: int) -> None:
    prompt, tokens = make_prompt(40), make_tokens(60)
    expected = run(stage, prompt, cut(tokens, [30, 30]))
    good, bad = stage.open(prompt), stage.open(prompt)
    results = stage.hop([FlowHop(good, tokens[:30], False), FlowHop(bad, [*tokens[:30], token], False)])
    assert_same(results[0], expected[0])
    assert isinstance(results[1], InvalidInputError)
    assert_same(hop_mel(stage, bad, tokens[:30]), expected[0])  # the refused tokens left no trace
    assert_same(hop_mel(stage, good, tokens[30:], True), expected[1])
    good.close()
    bad.close()
    stage.check_integrity()


@pytest.mark.parametrize("prompt_tokens, field", [(10, "speech_feat"), (60, "speaker_embedding")])
def test_non_finite_numbers_fail_their_session_only(stage: FlowStage, field: str, prompt_tokens: int) -> None:
    """With 60 prompt tokens the fault occurs in the shared prompt state, with 10 in the hop itself."""
    healthy, tokens = make_prompt(prompt_tokens), make_tokens(30)
    broken_array = getattr(healthy, field).copy()
    broken_array.flat[-1] = np.nan
    broken = dataclasses.replace(healthy, **{field: broken_array})
    expected = run(stage, healthy, [tokens], last_is_final=False)
    states = [stage.open(prompt) for prompt in (broken, healthy, broken)]
    results = stage.hop([FlowHop(state, tokens, False) for state in states])
    assert isinstance(results[0], EngineError) and isinstance(results[2], EngineError)
    assert_same(results[1], expected[0])
    assert isinstance(stage.hop([FlowHop(states[0], tokens, True)])[0], EngineError)
    stage.check_integrity()
    for state in states:
        state.close()
    stage.check_integrity()
    assert_same(run(stage, healthy, [tokens], last_is_final=False)[0], expected[0], 0)
    with pytest.raises(EngineError):
        stage.synthesize(tokens, broken)
    with pytest.raises(EngineError):
        stage.warm(dataclasses.replace(make_prompt(80), speech_feat=np.full((160, MEL_BINS), np.inf, np.float32)))
    stage.check_integrity()


def test_a_failure_of_the_device_fails_the_sessions_of_the_call(unet: FlowStage, monkeypatch: pytest.MonkeyPatch) -> None:
    state, other = unet.open(make_prompt(10)), unet.open(make_prompt(10, seed=1))
    hop_mel(unet, other, make_tokens(10))
    hop_mel(unet, state, make_tokens(60))
    assert state.account.pages

    def broken(*_: object) -> torch.Tensor:
        raise RuntimeError("device lost")

    with monkeypatch.context() as patch:
        patch.setattr(FlowNetwork, "conditions", broken)
        result = unet.hop([FlowHop(state, make_tokens(10), False)])[0]
    assert isinstance(result, EngineError) and "device lost" not in str(result)
    assert state.account.closed and not state.account.pages  # at once, without a call of close
    unet.check_integrity()
    assert hop_mel(unet, other, [], True).shape[1] == 6
    state.close()
    other.close()
    unet.check_integrity()


def test_an_exception_fails_its_group_and_not_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans of very different lengths are computed separately."""
    stage = make_stage()
    prompt, tokens = make_prompt(0), make_tokens(60)
    expected = run(stage, prompt, [tokens[:8]], last_is_final=False)[0]
    long, short = stage.open(prompt), stage.open(prompt)
    begin = FlowNetwork.begin

    def fails_when_long(self: FlowNetwork, batch: FlowBatch, memory: FlowMemory) -> SolverState:
        if int(batch.lengths.max()) > 20:
            raise RuntimeError("device lost")
        return begin(self, batch, memory)

    with monkeypatch.context() as patch:
        patch.setattr(FlowNetwork, "begin", fails_when_long)
        broken, spoken = stage.hop([FlowHop(long, tokens, False), FlowHop(short, tokens[:8], False)])
    assert isinstance(broken, EngineError) and isinstance(spoken, torch.Tensor)
    assert_same(spoken, expected)
    long.close()
    short.close()
    stage.check_integrity()


@pytest.mark.parametrize(
    "change",
    [
        lambda prompt: {"speech_feat": prompt.speech_feat[:-1]},
        lambda prompt: {"speech_feat": prompt.speech_feat[:, :79]},
        lambda prompt: {"speaker_embedding": prompt.speaker_embedding[:191]},
        lambda prompt: {"speech_tokens": prompt.speech_tokens - 50},
    ],
)
def test_a_prompt_that_does_not_fit_is_refused_at_open(stage: FlowStage, change: Callable[[VoicePrompt], dict[str, Any]]) -> None:
    prompt = make_prompt(10)
    wrong = dataclasses.replace(prompt, **change(prompt))
    with pytest.raises(InvalidInputError):
        stage.open(wrong)
    with pytest.raises(InvalidInputError):
        stage.synthesize([1], wrong)
    stage.check_integrity()


def test_a_session_ends_at_the_end_of_the_noise(stage: FlowStage) -> None:
    state = stage.open(make_prompt(10))
    assert isinstance(stage.hop([FlowHop(state, [1] * 7491, False)])[0], InvalidInputError)
    assert hop_mel(stage, state, [1] * 10).shape[1] == 14
    state.close()


def test_open_refuses_what_it_cannot_guarantee() -> None:
    stage = make_stage(flow_state_mb=10, reserve_tokens=250)
    states = []
    with pytest.raises(BusyError):
        for seed in range(1000):
            states.append(stage.open(make_prompt(60, seed)))
    assert len(states) == stage.pool.total // (10 + 2) > 1
    stage.check_integrity()
    states.pop().close()
    states.append(stage.open(make_prompt(60, 5000)))
    pieces = cut(make_tokens(250), [50] * 5)
    expected = run(make_stage(), make_prompt(60, 0), pieces)
    for piece, reference in zip(pieces, expected, strict=True):  # all sessions grow to their reservations
        results = stage.hop([FlowHop(state, piece, piece is pieces[-1]) for state in states])
        assert all(isinstance(mel, torch.Tensor) for mel in results)
        assert_same(results[0], reference)
        stage.check_integrity()
    for state in states:
        state.close()
    stage.check_integrity()
    assert stage.pool.available == stage.pool.total


def test_a_session_that_outgrows_the_pool_forgets_its_oldest_speech(unet: FlowStage, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt, pieces = make_prompt(30), cut(make_tokens(240), [40] * 6)
    small = _stage_with_pages(5)
    small.reserve_chunks = 0
    state = small.open(prompt)
    spans: list[Span] = []
    begin = small.runner.begin

    def recorded(batch: Sequence[Span]) -> SpanBatch:
        spans.extend(batch)
        return begin(batch)

    monkeypatch.setattr(small.runner, "begin", recorded)
    found = []
    for piece in pieces:
        found.append(hop_mel(small, state, piece, piece is pieces[-1]))
        small.check_integrity()
    expected = run(unet, prompt, pieces)
    prefix, *hops = spans
    assert prefix.start == 0 and [mel.shape for mel in found] == [mel.shape for mel in expected]
    assert all(torch.isfinite(mel).all() for mel in found)
    assert all(span.length <= 24 + 40 and len(span.context_pages) <= 5 for span in hops)  # constant time and memory
    assert all(span.context_pages[0] == prefix.keep_pages[0] for span in hops)  # the prompt is never forgotten
    assert all(len(set(span.context_pages) | set(span.keep_pages)) == len(span.context_pages) + len(span.keep_pages) for span in hops)
    whole = [len(span.context_pages) * 25 == span.start for span in hops]
    assert whole == sorted(whole, reverse=True) and 0 < sum(whole) < len(whole)
    for mel, exact, is_whole in zip(found, expected, whole, strict=True):
        if is_whole:
            assert_same(mel, exact)
        else:
            assert not torch.allclose(mel, exact, atol=1e-4)
    state.close()
    small.check_integrity()


@settings(max_examples=6)
@given(
    st.lists(st.tuples(st.sampled_from(["open", "hop", "final", "close"]), st.integers(0, 3), st.integers(0, 60)), max_size=14),
    st.integers(0, 1),
)
def test_closing_at_any_step_leaves_the_pool_consistent(steps: list[tuple[str, int, int]], left: int) -> None:
    stage = make_stage(flow_state_mb=2, left_context_chunks=left, reserve_tokens=50)
    live: dict[int, FlowState] = {}
    for kind, slot, amount in steps:
        if kind == "open" and slot not in live:
            live[slot] = stage.open(make_prompt(amount, seed=slot % 2))
        elif kind == "close" and slot in live:
            live.pop(slot).close()
        elif slot in live:
            stage.hop([FlowHop(live[slot], make_tokens(amount), kind == "final")])
        stage.check_integrity()
    for state in live.values():
        state.close()
    stage.check_integrity()
    assert stage.pool.available == stage.pool.total


def test_with_bounded_left_context_short_speech_that_becomes_long_keeps_its_state() -> None:
    """Every page is reserved by somebody. Without state a hop would compute all of the speech again."""
    left = 4
    stage = make_stage(flow_state_mb=16, left_context_chunks=left)
    state, others = stage.open(make_prompt(12 * 25 + 3), 4.0), []
    with pytest.raises(BusyError):
        while True:
            others.append(stage.open(make_prompt(12 * 25 + 3), 4.0))
    assert others
    for hop in range(2 * left + 3):
        (mel,) = stage.hop([FlowHop(state, make_tokens(28 if hop == 0 else 25), False)])
        assert isinstance(mel, torch.Tensor) and len(state.tokens) - state.committed <= 28
    for one in others:
        stage.hop([FlowHop(one, make_tokens(28), False)])
        assert len(one.tokens) - one.committed <= 28
    stage.check_integrity()


@pytest.mark.parametrize("left", [0, 15, 100_000])
def test_the_automatic_budget_has_room_for_all_sessions(left: int) -> None:
    stage = make_stage(flow_state_mb=0, left_context_chunks=left)
    states = [stage.open(make_prompt(78, seed)) for seed in range(64)]  # RuntimeConfig.max_sessions
    for state in states:
        state.close()
    stage.check_integrity()


@pytest.mark.parametrize("field", ["speech_tokens", "speech_feat", "speaker_embedding"])
def test_voices_that_differ_in_one_thing_share_nothing(field: str) -> None:
    stage, tokens = make_stage(), make_tokens(20)
    first = make_prompt(60, seed=1)
    second = dataclasses.replace(first, **{field: getattr(make_prompt(60, seed=2), field)})
    run(stage, first, [tokens])  # its state stays
    assert_same(run(stage, second, [tokens])[0], run(make_stage(), second, [tokens])[0])


def test_hops_after_the_end_are_errors(stage: FlowStage) -> None:
    state = stage.open(make_prompt(10))
    hop_mel(stage, state, make_tokens(5), True)
    assert isinstance(stage.hop([FlowHop(state, [1], False)])[0], InvalidInputError)
    state.close()
    state.close()
    assert isinstance(stage.hop([FlowHop(state, [1], True)])[0], InvalidInputError)
    stage.check_integrity()
