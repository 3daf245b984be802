"""Work in steps gives what it gives at once: a whole utterance, and the prompt state of a new voice."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.errors import EngineError, InvalidInputError
from bistream.gpu.steps import finish
from bistream.token2mel import runner
from bistream.token2mel.batching import Span
from bistream.token2mel.runner import FlowRunner
from bistream.token2mel.stage import FlowHop, FlowStage
from tests.unit.token2mel.flow_fixtures import EXACT, assert_same, hop_mel, make_prompt, make_stage, make_tokens, run
from tests.unit.token2mel.test_dit_graphs import graph_stage


@pytest.fixture(scope="module", params=["unet", "dit in graphs"])
def stage(request: pytest.FixtureRequest) -> FlowStage:
    return make_stage() if request.param == "unet" else graph_stage()


def at_once(stage: FlowStage, prompt_tokens: int, count: int) -> torch.Tensor:
    """The mel of an utterance in one call of the network, with the mask of full attention."""
    prompt, tokens = make_prompt(prompt_tokens), make_tokens(count)
    whole = [*prompt.speech_tokens.tolist(), *tokens]
    mel = FlowRunner.compute(stage.runner, [Span(whole, 0, len(whole), prompt, streaming=False)])[0]
    assert isinstance(mel, torch.Tensor)
    return mel[:, 2 * prompt_tokens :]


@settings(max_examples=4)
@given(prompt=st.integers(0, 60), count=st.integers(1, 60), scores=st.integers(100, 20_000))
def test_an_utterance_in_steps_is_the_utterance(stage: FlowStage, prompt: int, count: int, scores: int) -> None:
    with mock.patch.dict(runner.MAX_SCORES, cpu=scores):
        found = stage.synthesize(make_tokens(count), make_prompt(prompt))
    assert_same(found, at_once(stage, prompt, count), EXACT)


def test_a_step_is_bounded_however_long_the_utterance_is(stage: FlowStage) -> None:
    """Counted in attention scores per head of the largest call."""
    largest = []
    attention = torch.nn.functional.scaled_dot_product_attention
    for count in (60, 180):
        scores: list[int] = []

        def counted(query: torch.Tensor, key: torch.Tensor, *others: Any, scores: list[int] = scores, **more: Any) -> torch.Tensor:
            scores.append(query.shape[2] * key.shape[2])
            return attention(query, key, *others, **more)

        with mock.patch.dict(runner.MAX_SCORES, cpu=5000), mock.patch("torch.nn.functional.scaled_dot_product_attention", counted):
            stage.synthesize(make_tokens(count), make_prompt(10))
        largest.append(max(scores))
    assert max(largest) <= 5000


def test_hops_between_the_steps_change_nothing(stage: FlowStage) -> None:
    prompt, tokens = make_prompt(40, seed=3), make_tokens(60)
    expected, hops = at_once(stage, 40, 60), run(stage, prompt, [tokens[:30], tokens[30:]])
    steps, state = stage.synthesis(make_tokens(60), make_prompt(40)), stage.open(prompt)
    next(steps)
    first = hop_mel(stage, state, tokens[:30])
    next(steps)
    assert_same(torch.cat([first, hop_mel(stage, state, tokens[30:], True)], dim=1), torch.cat(hops, dim=1), EXACT)
    assert_same(finish(steps), expected, EXACT)
    state.close()


def test_bad_utterances_are_refused_before_anything_is_computed(stage: FlowStage) -> None:
    with mock.patch.object(stage.runner, "whole_utterance", side_effect=AssertionError), pytest.raises(InvalidInputError):
        finish(stage.synthesis(make_tokens(7480), make_prompt(30)))


@pytest.mark.parametrize("prompt_tokens", [10, 53, 140])
def test_a_voice_prepared_in_pieces_is_the_voice(prompt_tokens: int) -> None:
    prompt, tokens = make_prompt(prompt_tokens, seed=4), make_tokens(45)
    expected = run(make_stage(), prompt, [tokens])[0]
    stage = make_stage()
    state, pieces = stage.open(prompt), 0
    while stage.needs_preparation(state):
        stage.prepare(state)
        pieces += 1
    complete = max(0, prompt_tokens - 3) // 25
    assert pieces == max(0, -(-complete // 2) - 1)
    assert_same(hop_mel(stage, state, tokens, True), expected, EXACT)
    state.close()
    stage.check_integrity()


def test_sessions_of_one_new_voice_prepare_it_together() -> None:
    prompt, tokens, stage = make_prompt(200, seed=4), make_tokens(20), make_stage()
    expected = run(make_stage(), prompt, [tokens])[0]
    states = [stage.open(prompt) for _ in range(2)]
    for state in states:
        assert stage.needs_preparation(state)
        stage.prepare(state)
    assert states[0].account.prefix is states[1].account.prefix
    states[0].close()  # the other one goes on where both were
    assert states[1].account.prefix is not None and states[1].account.prefix.computed == 4
    assert_same(hop_mel(stage, states[1], tokens, True), expected, EXACT)  # a hop computes what is missing
    states[1].close()
    stage.check_integrity()


def test_a_voice_that_cannot_be_prepared_fails_its_session(stage: FlowStage) -> None:
    prompt = make_prompt(140, seed=9)
    prompt.speech_feat[:] = float("nan")
    state = stage.open(prompt)
    stage.prepare(state)
    assert not stage.needs_preparation(state)
    assert state.failure is not None
    assert isinstance(stage.hop([FlowHop(state, [1], False)])[0], EngineError)
    state.close()
    stage.check_integrity()
