"""All unistream and bistream generations of the reference, token for token, in reference mode.

Twice: by a dense forward pass over the whole ledger at every step, which shows that the layouts feed the right ids, and
through the torch engine with its cache, which shows that its turns are equivalent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from bistream.errors import EngineError
from bistream.rates import MAX_SPEECH_TOKENS_PER_TEXT_TOKEN
from bistream.text2token.engine import EngineSequence, SamplingSpec, TokenSpace, TurnEnd, TurnLimits, TurnResult
from bistream.text2token.engine_settings import EngineSettings
from bistream.text2token.interleave import Interleaver, UnistreamLayout
from bistream.text2token.layout import Layout, Turn
from bistream.text2token.qwen2 import Qwen2Model
from bistream.text2token.torch_engine import TorchEngine
from bistream.text2token.weights import build_weights
from bistream.types import FinishReason
from tests.fakes import RecordingSink, ScriptedSampler
from tests.parity import golden

CASES: list[dict[str, Any]] = golden.read_json("llm_cases.json")["cases"]
MAX_IDS = 2000  # of one case: more than any case needs
RunTurn = Callable[[Turn], tuple[list[int], TurnResult]]


@pytest.fixture(scope="module")
def model() -> Qwen2Model:
    torch.set_num_threads(1)
    config = golden.checkpoint_config().language_model
    return Qwen2Model(config, build_weights(golden.tensors("llm_weights"), config, torch.device("cpu"), torch.float32))


def scripted_pick(script: dict[str, Any]) -> Callable[[Tensor, Sequence[int]], int]:
    """The sampler of tests/golden/README.md: log-probabilities of the head and all ids decided so far -> head row."""

    def pick(log_probs: Tensor, decided: Sequence[int]) -> int:
        for force in script["force"]:
            applies = len(decided) >= force["at"] if force.get("from_then_on") else len(decided) == force["at"]
            if applies and log_probs[force["id"]] != -torch.inf:
                return int(force["id"])
        window = script["no_repeat_window"]
        scores = log_probs.clone()
        scores[list(script["suppress"])] = -torch.inf
        scores[list(decided[-window:] if window else ())] = -torch.inf
        return int(scores.argmax())

    return pick


@dataclass
class DenseSequence:
    """One sequence without an engine: the whole ledger goes through the model for every id."""

    model: Qwen2Model
    pick: Callable[[Tensor, Sequence[int]], int]

    def __post_init__(self) -> None:
        self.ledger: list[int] = []
        self.decided: list[int] = []

    def run(self, turn: Turn) -> tuple[list[int], TurnResult]:
        self.ledger += turn.append_ids
        ids: list[int] = []
        offset = self.model.space.speech_offset
        while len(ids) < min(turn.limits.max_new_ids, MAX_IDS):
            logits = self.model.logits(self.model.forward_dense(torch.tensor(self.ledger))[-1:])[0]
            log_probs = logits.log_softmax(dim=-1)
            early = turn.limits.forbidden_early if len(ids) < turn.limits.min_new_ids else frozenset()
            log_probs[[token_id - offset for token_id in turn.limits.forbidden | early]] = -torch.inf
            row = self.pick(log_probs, self.decided)
            self.decided.append(row)
            if offset + row in self.model.space.specials:
                return ids, TurnResult(TurnEnd.STOP, stop_id=offset + row)
            ids.append(offset + row)
            self.ledger.append(offset + row)
        if turn.limits.record_on_length is not None:
            self.decided.append(turn.limits.record_on_length - offset)
        return ids, TurnResult(TurnEnd.LENGTH)


def engine_runner(engine: TorchEngine, sequence: EngineSequence) -> RunTurn:
    def run(turn: Turn) -> tuple[list[int], TurnResult]:
        sink = RecordingSink()
        sequence.turn(turn.append_ids, turn.limits, sink)
        while engine.step():
            pass
        assert sink.result is not None
        return sink.ids, sink.result

    return run


def make_layout(case: dict[str, Any], space: TokenSpace) -> Layout:
    prompt_speech = [space.speech_offset + token for token in case["prompt_speech"]]
    if case["kind"] == "unistream":
        return UnistreamLayout(space, case["prompt_text"], prompt_speech, mode="reference")
    mix_ratio = golden.checkpoint_config().language_model.mix_ratio
    return Interleaver(space, case["prompt_text"], prompt_speech, mode="reference", mix_ratio=mix_ratio)


def drive(layout: Layout, run: RunTurn) -> list[int]:
    tokens: list[int] = []
    while (turn := layout.next_turn()) is not None:
        ids, result = run(turn)
        tokens += ids
        layout.turn_ended(ids, result)
    return tokens


def check_case(case: dict[str, Any], space: TokenSpace, run: RunTurn) -> None:
    layout = make_layout(case, space)
    arrivals = case["arrivals"] if case["kind"] == "bistream" else [case["text"]]
    tokens: list[int] = []
    counts: list[int] = []
    for index, piece in enumerate(arrivals):
        layout.push_text(piece)
        if index == len(arrivals) - 1:
            layout.end_text()
        new = drive(layout, run)
        counts.append(len(new))
        tokens += [space.speech_token(token_id) for token_id in new]
    assert tokens == case["expected"]
    assert counts == case.get("tokens_after_each_arrival", [len(tokens)])
    assert layout.done
    at_limit = case["kind"] == "unistream" and len(tokens) == MAX_SPEECH_TOKENS_PER_TEXT_TOKEN * len(case["text"])
    assert layout.finish_reason is (FinishReason.LENGTH if at_limit else FinishReason.EOS)
    assert layout.num_speech == len(tokens)


def test_the_cases_cover_both_layouts_and_long_pieces() -> None:
    assert {case["kind"] for case in CASES} == {"unistream", "bistream"}
    assert any(len(piece) > 1 for case in CASES for piece in case.get("arrivals", ()))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['kind']}-{case['name']}")
def test_dense(model: Qwen2Model, case: dict[str, Any]) -> None:
    check_case(case, model.space, DenseSequence(model, scripted_pick(case["sampler"])).run)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['kind']}-{case['name']}")
def test_torch_engine(model: Qwen2Model, case: dict[str, Any]) -> None:
    sampler = ScriptedSampler({"case": scripted_pick(case["sampler"])}, max_decided=MAX_IDS)
    settings = EngineSettings(max_sessions=1, kv_cache_tokens=2048, max_sequence_ids=MAX_IDS)
    engine = TorchEngine(model, settings, sampler=sampler, threaded=False)
    session = engine.open("case", SamplingSpec(), MAX_IDS)
    try:
        check_case(case, model.space, engine_runner(engine, session))
        engine.check_integrity()
    finally:
        session.close()
        engine.close()


@pytest.mark.parametrize(("in_final_phase", "row"), [(False, "second_stop"), (True, "second_stop"), (True, "fill")])
def test_an_id_that_the_reference_raises_for_is_an_engine_error(model: Qwen2Model, in_final_phase: bool, row: str) -> None:
    """Upstream leaves these ids possible and raises ``ValueError: should not get token`` when one is sampled."""
    space = model.space
    layout = Interleaver(space, [], [], mode="reference")
    layout.push_text([1, 2, 3] if in_final_phase else [1, 2, 3, 4, 5])
    if in_final_phase:
        layout.end_text()
    turn = layout.next_turn()
    assert turn is not None
    assert turn.limits.forbidden == (frozenset() if in_final_phase else {space.eos})
    with pytest.raises(EngineError, match="not allowed at this point"):
        layout.turn_ended([space.speech_offset], TurnResult(TurnEnd.STOP, stop_id=getattr(space, row)))


def test_limits_of_a_forced_fill_follow_the_prompt_speech(model: Qwen2Model) -> None:
    """Upstream's first forced index is (P // 15 + 1) * 15 - P."""
    space = model.space
    for num_prompt_speech in range(0, 61):
        layout = Interleaver(space, [7] * 20, [space.speech_offset] * num_prompt_speech, mode="reference")
        layout.push_text([8] * 5)
        turn = layout.next_turn()
        assert turn is not None
        expected = (num_prompt_speech // 15 + 1) * 15 - num_prompt_speech
        assert turn.limits == TurnLimits(expected, forbidden=frozenset({space.eos}), record_on_length=space.fill)
