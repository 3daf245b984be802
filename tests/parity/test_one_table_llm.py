"""The language model of Spark-TTS against the reference: prompts, forward pass, sampling, and whole sequences with its scripted sampler."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from bistream.checkpoints.one_table import OneTableConfig
from bistream.contract.checks import GENDERS, LEVELS
from bistream.text2token.engine import SamplingSpec, TurnEnd, TurnLimits
from bistream.text2token.engine_settings import EngineSettings
from bistream.text2token.one_table.prompts import Labels, SpeakerTokens, begin_speech, clone_prompt, continued_prompt, labels_prompt
from bistream.text2token.one_table.sampling import kept_scores
from bistream.text2token.one_table.tokenizer import PlainTextTokenizer
from bistream.text2token.one_table.voice_design import VoiceDesigner
from bistream.text2token.one_table.weights import build_weights, expected_shapes, speech_rows, voice_rows
from bistream.text2token.qwen2 import Qwen2Model
from bistream.text2token.step_runner import EagerRunner
from bistream.text2token.torch_engine import TorchEngine
from bistream.text2token.weights import ModelWeights
from tests.fakes import RecordingSink, ScriptedSampler
from tests.parity import golden_spark as golden
from tests.parity.test_bicodec_tokens import sizes

CONFIG = sizes()
TOKENS = CONFIG.tokens
PROMPTS: dict[str, Any] = golden.read_json("prompts.json")
PIPELINE: list[dict[str, Any]] = golden.read_json("pipeline.json")["cases"]
SAMPLING: list[dict[str, Any]] = golden.read_json("sampling.json")["cases"]


@pytest.fixture(scope="module")
def tokenizer() -> PlainTextTokenizer:
    model = golden.read_json("tokenizer.json")["model"]
    merges = [tuple(one.split(" ") if isinstance(one, str) else one) for one in model["merges"]]
    return PlainTextTokenizer({entry: number for entry, number in model["vocab"].items() if number < TOKENS.first}, merges, TOKENS)


@pytest.fixture(scope="module")
def reference_encode() -> Callable[[str], list[int]]:
    """Upstream's: added tokens in a text become ids."""
    reference = Tokenizer.from_file(str(golden.GOLDEN_DIR / "tokenizer.json"))
    return lambda text: list(reference.encode(text, add_special_tokens=False).ids)


@pytest.fixture(scope="module")
def model() -> Qwen2Model:
    weights = build_weights(golden.tensors("llm_weights"), CONFIG, torch.device("cpu"), torch.float32)
    return Qwen2Model(CONFIG, weights)


def test_every_key_of_the_file_and_no_other() -> None:
    assert {key: tuple(tensor.shape) for key, tensor in golden.tensors("llm_weights").items()} == expected_shapes(CONFIG)


def test_text_becomes_the_references_ids_without_added_tokens(tokenizer: PlainTextTokenizer) -> None:
    for case in PROMPTS["plain_texts"]:
        ids = tokenizer.encode(case["text"])
        if "<|" in case["text"]:
            assert max(ids) < TOKENS.first and tokenizer.decode(ids) == case["text"]
        else:
            assert ids == case["ids"]


def prompt_of(case: dict[str, Any], encode: Callable[[str], list[int]]) -> list[int]:
    if case["kind"] == "clone":
        return clone_prompt(TOKENS, encode, case["text"], SpeakerTokens(tuple(case["global_tokens"])))
    if case["kind"] == "clone_with_transcript":
        speaker, semantic = SpeakerTokens(tuple(case["global_tokens"])), case["semantic_tokens"]
        return continued_prompt(TOKENS, encode, case["transcript"], case["text"], speaker, semantic, separator="")
    return labels_prompt(TOKENS, encode, case["text"], Labels(case["gender"], case["pitch"], case["speed"]))


@pytest.mark.parametrize("number", range(len(PROMPTS["cases"])))
def test_prompts(number: int, tokenizer: PlainTextTokenizer, reference_encode: Callable[[str], list[int]]) -> None:
    case = PROMPTS["cases"][number]
    assert prompt_of(case, reference_encode) == case["ids"]
    if "<|" not in case["text"]:
        assert prompt_of(case, tokenizer.encode) == case["ids"]


def test_forward_pass(model: Qwen2Model) -> None:
    case = golden.tensors("llm_forward")
    hidden = model.forward_dense(case["ids"][0])
    torch.testing.assert_close(hidden, case["hidden"][0], rtol=0, atol=1e-4)
    last = hidden[-20:]
    torch.testing.assert_close(last @ model.weights.embedding[: CONFIG.table_size].T, case["logits_of_last_20"][0], rtol=0, atol=1e-3)
    scored = case["logits_of_last_20"][0][:, speech_rows(CONFIG)]
    torch.testing.assert_close(model.logits(last), scored, rtol=0, atol=1e-3)


def test_the_second_names_of_speech_tokens_mean_the_same(model: Qwen2Model) -> None:
    ids = golden.tensors("llm_forward")["ids"][0]
    rows = {row: model.space.speech_offset + place for place, row in enumerate(speech_rows(CONFIG))}
    other = torch.tensor([rows.get(number, number) for number in ids.tolist()])
    assert torch.equal(model.forward_dense(other), model.forward_dense(ids))


@pytest.mark.parametrize("case", SAMPLING, ids=lambda case: case["name"])
def test_sampling_probabilities(case: dict[str, Any]) -> None:
    data = golden.tensors("sampling")
    count, size = data["logits"].shape
    top_k = torch.full((count,), case["top_k"] or size)
    kept = kept_scores(data["logits"] / case["temperature"], top_k, torch.full((count,), case["top_p"]), int(top_k[0]))
    found = kept.softmax(dim=-1)
    assert (found > 0).sum(dim=-1).tolist() == case["kept"]
    if case["name"] in data:
        torch.testing.assert_close(found, data[case["name"]], rtol=0, atol=1e-6)
        assert torch.equal(found > 0, data[case["name"]] > 0)


@pytest.mark.parametrize("case", PIPELINE, ids=lambda case: case["name"])
def test_whole_sequences(case: dict[str, Any], model: Qwen2Model, tokenizer: PlainTextTokenizer) -> None:
    """Every id as the reference's ``generate`` with its scripted sampler, from the text and the tokens of the voice on."""
    arguments = case["arguments"]
    if "gender" in arguments:
        prompt = labels_prompt(
            TOKENS, tokenizer.encode, arguments["text"], Labels(arguments["gender"], arguments["pitch"], arguments["speed"])
        )
    else:
        tokens = golden.tensors("tokenize")
        voice = arguments["prompt_speech_path"]
        speaker = SpeakerTokens(tuple(tokens[f"{voice}.global"].flatten().tolist()))
        if "prompt_text" in arguments:
            semantic = tokens[f"{voice}.semantic"].flatten().tolist()
            prompt = continued_prompt(
                TOKENS, tokenizer.encode, arguments["prompt_text"], arguments["text"], speaker, semantic, separator=""
            )
        else:
            prompt = clone_prompt(TOKENS, tokenizer.encode, arguments["text"], speaker)
    assert prompt == case["prompt_ids"]
    expected = list(case["expected"])
    hidden = model.forward_dense(torch.tensor(prompt + expected))[len(prompt) - 1 : -1]  # what each id is chosen from: those before it
    for number, scores in enumerate(hidden @ model.weights.embedding[: CONFIG.table_size].T):
        assert _scripted(case["sampler"], scores, expected[:number]) == expected[number], number


PICKS = Callable[[torch.Tensor, list[int]], int]


def _engine(config: OneTableConfig, weights: ModelWeights, pick: PICKS) -> TorchEngine:
    torch.set_num_threads(1)
    settings = EngineSettings(max_sessions=1, max_rows=64, kv_cache_tokens=512, max_sequence_ids=512)
    runner = EagerRunner(Qwen2Model(config, weights), settings, ScriptedSampler(defaultdict(lambda: pick)))
    return TorchEngine(runner, settings, threaded=False)


def _run(engine: TorchEngine) -> None:
    while engine.step():
        pass


@pytest.mark.parametrize("name", ["clone", "clone_with_transcript", "control"])
def test_whole_sequences_on_the_engine(name: str, model: Qwen2Model, tokenizer: PlainTextTokenizer) -> None:
    """The same ids from heads that score only what can be sampled, through the paged cache; a voice of labels is made first."""
    case = next(one for one in PIPELINE if one["name"] == name)
    prompt, expected = list(case["prompt_ids"]), list(case["expected"])
    decided: list[int] = []

    def pick_of(rows: list[int]) -> PICKS:
        def pick(log_probs: torch.Tensor, _: list[int]) -> int:
            scores = torch.full((CONFIG.table_size,), -torch.inf)
            scores[rows] = log_probs
            decided.append(_scripted(case["sampler"], scores, decided))
            return rows.index(decided[-1])

        return pick

    if name == "control":
        rows = voice_rows(CONFIG)
        head = model.weights.embedding[rows]
        weights = replace(model.weights, head_weight=head, head_bias=torch.zeros(len(rows)))

        def pick(log_probs: torch.Tensor, known: list[int]) -> int:
            if not decided:
                decided.append(TOKENS.id("start_acoustic_token"))
            elif len(decided) == 3:
                decided.extend((TOKENS.id("end_acoustic_token"), TOKENS.id("start_global_token")))
            return pick_of(rows)(log_probs, known)

        engine = _engine(CONFIG.of_voices, weights, pick)
        arguments = case["arguments"]
        labels = Labels(arguments["gender"], arguments["pitch"], arguments["speed"])
        made: list[object] = []
        designer = VoiceDesigner(engine, CONFIG, tokenizer.encode)
        designer.begin(labels, 0, made.append, arguments["text"])
        _run(engine)
        (speaker,) = made
        assert isinstance(speaker, SpeakerTokens) and speaker.global_tokens == tuple(case["global_tokens"])
        prompt = clone_prompt(TOKENS, tokenizer.encode, arguments["text"], speaker)
        assert prompt == [*case["prompt_ids"], *decided, TOKENS.id("end_global_token")]
        decided.append(TOKENS.id("end_global_token"))
    if name != "clone_with_transcript":
        prompt += begin_speech(TOKENS, [])
        decided.append(TOKENS.id("start_semantic_token"))
    engine, sink = _engine(CONFIG, model.weights, pick_of(speech_rows(CONFIG))), RecordingSink()
    engine.open("a", SamplingSpec(win_size=0), 512).turn(prompt, TurnLimits(100), sink)
    _run(engine)
    assert decided == expected and sink.result is not None and sink.result.end is TurnEnd.STOP
    assert [model.space.speech_token(one) for one in sink.ids] == case["semantic"]


def _scripted(sampler: dict[str, Any], scores: torch.Tensor, decided: list[int]) -> int:
    allow = sampler["allow"]
    ranges = allow[len(decided)] if allow and len(decided) < len(allow) else None
    possible = set(range(len(scores))) if ranges is None else {number for first, end in ranges for number in range(first, end)}
    if len(possible) > 1:
        possible -= set(decided[-sampler["no_repeat_window"] :])
    return max(possible, key=lambda number: float(scores[number]))


def test_labels_are_the_words_of_the_command_line() -> None:
    assert (GENDERS, LEVELS) == (("female", "male"), ("very_low", "low", "moderate", "high", "very_high"))
    assert begin_speech(TOKENS, [0])[1] == TOKENS.id("bicodec_semantic_0")
