"""Greedy sessions speak the same ids as the torch engine when TensorRT-LLM's port computes the same network.

So merged ids, the sequence that is sent, rejection with a mask, and the ends of turns are those of the main engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from bistream.text2token.engine import SamplingSpec, TokenSpace, TurnEnd, TurnResult
from bistream.text2token.interleave import Interleaver, UnistreamLayout
from bistream.text2token.layout import Layout
from bistream.text2token.tensorrt_llm.padded_scores import padded_scores
from tests.unit.text2token.engine_conformance import Bench
from tests.unit.text2token.tensorrt_llm.bench import MERGED, PortBench
from tests.unit.text2token.tensorrt_llm.port import SamplingParams
from tests.unit.text2token.test_engine_conformance import FaultyRunner, stepped_bench
from tests.unit.text2token.tiny import SPACE, tiny_model

GREEDY = SamplingSpec(temperature=0.0)
MAX_IDS = 260
TEXT = [11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22]


def network(ids: list[int], sampling: SamplingParams) -> Sequence[int]:
    """Candidates by the scores of the tiny model over the merged vocabulary, best first."""
    model = tiny_model()
    own = [token_id if token_id < MERGED.speech_offset else token_id - MERGED.speech_offset + SPACE.speech_offset for token_id in ids]
    hidden = model.forward_dense(torch.tensor(own))[-1:]
    head = model.logits(hidden)[0]
    scores = padded_scores(torch.eye(1), head[:, None], torch.zeros_like(head), MERGED.speech_offset, MERGED.vocab_size)[0]
    order: list[int] = scores.argsort(descending=True)[: len(head)].tolist()
    return order


def bistream(space: TokenSpace) -> Layout:
    return Interleaver(space, [1, 2, 3], [space.speech_offset + 7] * 4, max_ids=MAX_IDS)


def unistream(space: TokenSpace) -> Layout:
    return UnistreamLayout(space, [1, 2, 3], [space.speech_offset + 7] * 4, max_ids=MAX_IDS)


def speak(bench: Bench, layout: Layout) -> list[tuple[list[int], TurnResult]]:
    layout.push_text(TEXT)
    layout.end_text()
    session = bench.engine.open("a", GREEDY, MAX_IDS)
    answers = []
    while (turn := layout.next_turn()) is not None:
        answers.append(bench.run(session, turn.append_ids, turn.limits))
        layout.turn_ended(*answers[-1])
    bench.engine.close()
    return answers


@pytest.mark.parametrize("make_layout", [bistream, unistream])
def test_a_greedy_session_equals_the_torch_engine(make_layout: Callable[[TokenSpace], Layout]) -> None:
    port = PortBench(network)
    expected = speak(stepped_bench(FaultyRunner()), make_layout(SPACE))
    assert speak(port.bench(), make_layout(SPACE)) == expected
    assert expected[-1][1].end in (TurnEnd.STOP, TurnEnd.LENGTH) and sum(len(ids) for ids, _ in expected) >= 10
    masked = sum(sampling.embedding_bias is not None for _, sampling in port.port.requests)
    assert masked > 0, "no stop id was rejected, so the test shows little"
