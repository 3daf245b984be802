"""All unistream and bistream generations of the reference, token for token, with its layouts and the torch engine."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from bistream.errors import EngineError
from bistream.text2token.engine import SamplingSpec, TokenSpace, TurnEnd, TurnLimits, TurnResult
from bistream.text2token.engine_settings import EngineSettings
from bistream.text2token.layout import TokenLayout, Turn
from bistream.text2token.qwen2 import Qwen2Model
from bistream.text2token.step_runner import EagerRunner
from bistream.text2token.torch_engine import TorchEngine
from bistream.text2token.weights import build_weights
from bistream.types import FinishReason
from tests.fakes import RecordingSink, ScriptedSampler
from tests.formats import MAX_SPEECH_TOKENS_PER_TEXT_TOKEN
from tests.parity import golden
from tests.parity.reference_layouts import ReferenceInterleaver, ReferenceUnistreamLayout

SETS = golden.SETS


def _cases(golden_set: golden.GoldenSet) -> Iterator[dict[str, Any]]:
    content = golden_set.read_json("llm_cases.json")
    for case in content["cases"]:
        suppress = case["sampler"]["suppress"]
        rows = list(range(*suppress)) if content.get("suppress_is") == "half-open range" else suppress
        yield {**case, "sampler": {**case["sampler"], "suppress": rows}}


CASES = [(title, case) for title, golden_set in SETS.items() for case in _cases(golden_set)]
of_all_cases = pytest.mark.parametrize(("title", "case"), CASES, ids=[f"{title}-{case['kind']}-{case['name']}" for title, case in CASES])
of_every_family = pytest.mark.parametrize("title", SETS)
MAX_IDS = 2000  # of one case: more than any case needs
Turns = Generator[Turn, tuple[list[int], TurnResult], None]  # what came of a turn is sent back


@cache
def model_of(title: str) -> Qwen2Model:
    torch.set_num_threads(1)
    config = SETS[title].language_model()
    return Qwen2Model(config, build_weights(SETS[title].tensors("llm_weights"), config, torch.device("cpu"), torch.float32))


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


def make_layout(title: str, case: dict[str, Any], space: TokenSpace) -> TokenLayout:
    prompt_speech = [space.speech_offset + token for token in case["prompt_speech"]]
    if case["kind"] == "unistream":
        return ReferenceUnistreamLayout(space, case["prompt_text"], prompt_speech)
    mix_ratio = SETS[title].language_model().mix_ratio
    instruction, prompt_text = split_prompt(title, case["prompt_text"])
    return ReferenceInterleaver(space, prompt_text, prompt_speech, mix_ratio=mix_ratio, instruction_ids=instruction)


def split_prompt(title: str, prompt_text: list[int]) -> tuple[list[int], list[int]]:
    """Instruction and transcript: in CosyVoice3 behind the first ``<|endofprompt|>``; in CosyVoice2 an instruction is prompt text."""
    end = SETS[title].read_json("config.json")["llm"].get("end_of_prompt")
    at = 0 if end is None else prompt_text.index(end) + 1
    return prompt_text[:at], prompt_text[at:]


def drive(layout: TokenLayout, yielded: list[int]) -> Turns:
    """All turns that are possible; their ids are added to ``yielded``."""
    while (turn := layout.next_turn()) is not None:
        ids, result = yield turn
        yielded += ids
        layout.turn_ended(ids, result)


def check_case(title: str, case: dict[str, Any], space: TokenSpace) -> Turns:
    layout = make_layout(title, case, space)
    arrivals = case["arrivals"] if case["kind"] == "bistream" else [case["text"]]
    ids: list[int] = []
    counts: list[int] = []
    raised: int | None = None
    for index, piece in enumerate(arrivals):
        layout.push_text(piece)
        if index == len(arrivals) - 1:
            layout.end_text()
        before = len(ids)
        try:
            yield from drive(layout, ids)
        except EngineError as error:
            assert (found := re.search(r"sampled id (\d+), which is not allowed at this point", str(error))) is not None
            raised = int(found[1]) - space.speech_offset
        counts.append(len(ids) - before)
        if raised is not None:
            break
    tokens = [space.speech_token(token_id) for token_id in ids]
    assert tokens == case["expected"]
    assert counts == case.get("tokens_after_each_arrival", [len(tokens)])
    assert raised == case.get("raises_for_id")
    if raised is not None:
        return
    assert layout.finish_reason is not None
    at_limit = case["kind"] == "unistream" and len(tokens) == MAX_SPEECH_TOKENS_PER_TEXT_TOKEN * len(case["text"])
    assert layout.finish_reason is (FinishReason.LENGTH if at_limit else FinishReason.EOS)
    assert layout.num_speech == len(tokens)


@of_every_family
def test_the_cases_cover_both_layouts_and_long_pieces(title: str) -> None:
    cases = [case for of_title, case in CASES if of_title == title]
    assert {case["kind"] for case in cases} == {"unistream", "bistream"}
    assert any(len(piece) > 1 for case in cases for piece in case.get("arrivals", ()))


@cache
def failures_of(title: str) -> dict[str, Exception | None]:
    """Of the check of each case, by kind and name. All run side by side in one engine."""
    model, cases = model_of(title), {f"{case['kind']}-{case['name']}": case for of_title, case in CASES if of_title == title}
    sampler = ScriptedSampler({name: scripted_pick(case["sampler"]) for name, case in cases.items()}, max_decided=MAX_IDS)
    settings = EngineSettings(len(cases), max_rows=256, kv_cache_tokens=2048 * len(cases), max_sequence_ids=MAX_IDS)
    engine = TorchEngine(EagerRunner(model, settings, sampler), settings, threaded=False)
    sequences = {name: engine.open(name, SamplingSpec(), MAX_IDS) for name in cases}
    turns = {name: check_case(title, case, model.space) for name, case in cases.items()}
    sinks, failures = dict[str, RecordingSink](), dict[str, Exception | None]()

    def go_on(name: str, answer: Any) -> None:
        try:
            turn = turns[name].send(answer)
        except Exception as error:
            failures[name] = None if isinstance(error, StopIteration) else error
            sequences[name].close()
        else:
            sinks[name] = RecordingSink()
            sequences[name].turn(turn.append_ids, turn.limits, sinks[name])

    for name in cases:
        go_on(name, None)
    while engine.step():
        for name in [name for name in cases if name not in failures]:
            if (result := sinks[name].result) is not None:
                go_on(name, (sinks[name].ids, result))
    engine.check_integrity()
    engine.close()
    return failures


@of_all_cases
def test_torch_engine(title: str, case: dict[str, Any]) -> None:
    failure = failures_of(title)[f"{case['kind']}-{case['name']}"]
    if failure is not None:
        raise failure


@of_every_family
@pytest.mark.parametrize("in_final_phase", [False, True])
def test_an_id_that_the_reference_raises_for_is_an_engine_error(title: str, in_final_phase: bool) -> None:
    """Upstream leaves these ids possible and raises ``ValueError: should not get token`` when one is sampled. It masks the first of them
    in a block, which is eos in CosyVoice2 and sos in CosyVoice3, so CosyVoice3 raises for eos."""
    space = model_of(title).space
    layout = ReferenceInterleaver(space, [], [])
    layout.push_text([1, 2, 3] if in_final_phase else [1, 2, 3, 4, 5])
    if in_final_phase:
        layout.end_text()
    turn = layout.next_turn()
    assert turn is not None
    assert turn.limits.forbidden == (frozenset() if in_final_phase else {space.specials[0]})
    for sampled in set(space.specials) - {space.eos if in_final_phase else space.fill}:
        with pytest.raises(EngineError, match="not allowed at this point"):
            copy.deepcopy(layout).turn_ended([space.speech_offset], TurnResult(TurnEnd.STOP, stop_id=sampled))


@of_every_family
def test_limits_of_a_forced_fill_follow_the_prompt_speech(title: str) -> None:
    """Upstream's first forced index is (P // 15 + 1) * 15 - P."""
    space = model_of(title).space
    for num_prompt_speech in range(0, 61):
        layout = ReferenceInterleaver(space, [7] * 20, [space.speech_offset] * num_prompt_speech)
        layout.push_text([8] * 5)
        turn = layout.next_turn()
        assert turn is not None
        expected = (num_prompt_speech // 15 + 1) * 15 - num_prompt_speech
        assert turn.limits == TurnLimits(expected, forbidden=frozenset({space.first_special}), record_on_length=space.fill)
