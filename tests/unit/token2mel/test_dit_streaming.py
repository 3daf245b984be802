"""CosyVoice3's flow behind the same stage: streaming equals the chunk-masked computation of whole prefixes, whatever the hops are."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
import torch
from torch import Tensor

from bistream.checkpoints.config import DitFlowConfig
from bistream.errors import CheckpointError, EngineError
from bistream.token2mel.dit.network import DitFlow
from bistream.token2mel.dit.weights import build_network, expected_shapes
from bistream.token2mel.flow import FlowBatch
from bistream.token2mel.stage import FlowHop, FlowStage
from tests.unit.token2mel.flow_fixtures import DIT_CHECKPOINT, TINY_DIT, assert_same, cut, make_prompt, make_stage, make_tokens, run

CPU = torch.device("cpu")


@functools.cache
def stage(incremental: bool = True, left_context_chunks: int = 0, final_mode: str = "streaming") -> FlowStage:
    return make_stage(incremental=incremental, left_context_chunks=left_context_chunks, final_mode=final_mode, checkpoint=DIT_CHECKPOINT)


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


def test_the_network_has_the_released_keys_and_sizes() -> None:
    """Numbers of the released file, as its users report them."""
    shapes = expected_shapes(DitFlowConfig())
    assert len(shapes) == 330
    assert sum(int(np.prod(shape)) for shape in shapes.values()) == 332_257_088 + 32


@pytest.mark.parametrize("change", [{"mel_dim": 64}, {"mu_dim": 40}, {"dim": 40}, {"dim_head": 7}, {"static_chunk_size": 51}])
def test_sizes_that_do_not_fit_are_refused(change: dict[str, int]) -> None:
    sizes = dataclasses.replace(TINY_DIT, dit=dataclasses.replace(TINY_DIT.dit, **change))
    with pytest.raises(CheckpointError, match="The yaml is at fault"):
        build_network({}, sizes, CPU, torch.float32)
