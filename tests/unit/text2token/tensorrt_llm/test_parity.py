"""Greedy sessions speak the same ids as the torch engine when TensorRT-LLM computes the same network.

So merged ids, the sequence that is sent, rejection with a mask, and the ends of turns are those of the main engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from bistream.families.cosyvoice3 import COSYVOICE3
from bistream.text2token.engine import SamplingSpec, TokenSpace, TurnEnd, TurnResult
from bistream.text2token.interleave import Interleaver, UnistreamLayout
from bistream.text2token.layout import TokenLayout
from bistream.text2token.qwen2 import Qwen2Model
from bistream.text2token.sampler import RepetitionAwareSampler
from bistream.text2token.step_runner import EagerRunner
from bistream.text2token.tensorrt_llm.merged_ids import MergedIds, padded_scores
from bistream.text2token.weights import build_weights
from tests.unit.text2token import tiny
from tests.unit.text2token.engine_conformance import Bench, FaultyRunner, stepped_bench
from tests.unit.text2token.tensorrt_llm.bench import PortBench
from tests.unit.text2token.tensorrt_llm.fake_llmapi import Choose
from tests.unit.text2token.test_engine_conformance import SETTINGS

GREEDY = SamplingSpec(temperature=0.0)
MAX_IDS = 260
TEXT = [11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22]


def cosyvoice3_model() -> Qwen2Model:
    """Stop ids occur, as in the other tiny model, whose head has a bias for it."""
    config = replace(tiny.CONFIG, rows=COSYVOICE3.rows, head_has_bias=False)
    state = tiny.random_state(config)
    state["llm_decoder.weight"][config.speech_token_size : config.num_scores] *= 2
    return Qwen2Model(config, build_weights(state, config, torch.device("cpu"), torch.float32))


MODELS: dict[str, Callable[[], Qwen2Model]] = {"cosyvoice2": tiny.tiny_model, "cosyvoice3": cosyvoice3_model}


def network(model: Qwen2Model, merged: MergedIds) -> Choose:
    """Candidates by the scores of the model over the merged vocabulary, best first."""
    space = model.space

    def choose(ids: list[int], sampling: SimpleNamespace) -> Sequence[int]:
        own = [token_id if token_id < merged.speech_offset else token_id - merged.speech_offset + space.speech_offset for token_id in ids]
        hidden = model.forward_dense(torch.tensor(own))[-1:]
        head = model.logits(hidden)[0]
        scores = padded_scores(torch.eye(1), head[:, None], torch.zeros_like(head), merged.speech_offset, merged.vocab_size)[0]
        order: list[int] = scores.argsort(descending=True)[: len(head)].tolist()
        return order

    return choose


def bistream(space: TokenSpace) -> TokenLayout:
    return Interleaver(space, [1, 2, 3], [space.speech_offset + 7] * 4, max_ids=MAX_IDS, instruction_ids=[4, 5])


def unistream(space: TokenSpace) -> TokenLayout:
    return UnistreamLayout(space, [1, 2, 3], [space.speech_offset + 7] * 4, max_ids=MAX_IDS)


def speak(bench: Bench, layout: TokenLayout) -> list[tuple[list[int], TurnResult]]:
    layout.push_text(TEXT)
    layout.end_text()
    session = bench.engine.open("a", GREEDY, MAX_IDS)
    answers = []
    while (turn := layout.next_turn()) is not None:
        answers.append(bench.run(session, turn.append_ids, turn.limits))
        layout.turn_ended(*answers[-1])
    bench.engine.close()
    return answers


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("make_layout", [bistream, unistream])
def test_a_greedy_session_equals_the_torch_engine(make_layout: Callable[[TokenSpace], TokenLayout], family: str) -> None:
    model = MODELS[family]()
    merged = MergedIds(model.space, speech_offset=180, vocab_size=320)
    bench = PortBench(network(model, merged), merged=merged)
    expected = speak(stepped_bench(FaultyRunner(EagerRunner(model, SETTINGS, RepetitionAwareSampler()))), make_layout(model.space))
    assert speak(bench.bench(), make_layout(model.space)) == expected
    assert expected[-1][1].end in (TurnEnd.STOP, TurnEnd.LENGTH) and sum(len(ids) for ids, _ in expected) >= 10
    masked = sum(sampling.embedding_bias is not None for _, sampling in bench.library.requests)
    assert masked > 0, "no stop id was rejected, so the test shows little"
