"""CosyVoice3's language model: recorded steps as plain ones, and what its service feeds and gives out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.config import RuntimeConfig
from bistream.families.cosyvoice3 import COSYVOICE3
from bistream.text.special_tokens import END_OF_PROMPT
from bistream.text.tokenizer import TextTokenizer
from bistream.text2token.engine import SamplingSpec, TokenSpace
from bistream.text2token.engine_settings import EngineSettings
from bistream.text2token.factory import LanguageModelParts
from bistream.text2token.graphs.runner import GraphStepRunner
from bistream.text2token.graphs.weights import fold_weights
from bistream.text2token.interleave import Interleaver
from bistream.text2token.qwen2 import Qwen2Model
from bistream.text2token.sampler import RepetitionAwareSampler
from bistream.text2token.service import LanguageModelStart, SpeechTokenService
from bistream.text2token.sizes import graphs_need
from bistream.text2token.step_runner import EagerRunner
from bistream.text2token.weights import build_weights
from bistream.types import FinishReason, GenerationOptions, SpeechTokens
from scripts._tokenizer_files import special_token_count, write_tokenizer_files
from tests.fakes import Script, ScriptedEngine, TurnView
from tests.plain_step import PlainKernels
from tests.unit.text2token import tiny
from tests.unit.text2token.engine_conformance import Bench, FaultyRunner, stepped_bench
from tests.unit.text2token.test_service import Mailbox

CPU = torch.device("cpu")
SIZES = replace(tiny.CONFIG, text_vocab_size=800, rows=COSYVOICE3.rows, head_has_bias=False)
SPACE = TokenSpace.of(SIZES)
DEFAULT = COSYVOICE3.default_instruction + END_OF_PROMPT
SILENT = sorted(COSYVOICE3.silent_tokens)[:5]  # within the tiny codebook


def test_recorded_steps_speak_what_the_plain_ones_do() -> None:
    """With a fourth special id, of which each part of the layout allows another one."""
    sizes = EngineSettings(max_sessions=3, max_rows=32, kv_cache_tokens=2048, block_size=64, max_sequence_ids=600)
    weights = build_weights(tiny.random_state(SIZES), SIZES, CPU, torch.float32)
    plain = EagerRunner(Qwen2Model(SIZES, weights), sizes, RepetitionAwareSampler())
    graphs = GraphStepRunner(SIZES, fold_weights(weights, SIZES, CPU, torch.float32), sizes, make_kernels=PlainKernels)
    found = [spoken(stepped_bench(FaultyRunner(runner))) for runner in (plain, graphs)]
    assert found[0] == found[1] and len(found[0]) > 20


def spoken(bench: Bench) -> list[int]:
    """A session in pieces: what its turns yield."""
    sequence, yielded = bench.engine.open("a", SamplingSpec(seed=3), 600), list[int]()
    layout = Interleaver(SPACE, [1, 2], [SPACE.speech_offset] * 9, instruction_ids=[7, 8])
    for piece in ([3, 4, 5], list(range(10, 14)), [31]):
        layout.push_text(piece)
        if piece == [31]:
            layout.end_text()
        while (turn := layout.next_turn()) is not None:
            ids, result = bench.run(sequence, turn.append_ids, turn.limits)
            assert result.stop_id not in turn.limits.forbidden
            yielded += ids
            layout.turn_ended(ids, result)
    assert layout.finish_reason is not None
    return yielded


def test_the_kernels_serve_the_rows_of_the_engine_and_not_those_of_the_file() -> None:
    full = replace(SIZES, hidden_size=896, intermediate_size=4864, num_attention_heads=14)
    assert graphs_need(full) == ()
    stored = replace(full, rows=replace(full.rows, num_scored=full.rows.num_stored))
    assert graphs_need(stored) == ("at most 63 ids that end a turn",)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    directory = tmp_path_factory.mktemp("model")
    (directory / "cosyvoice3.yaml").touch()
    write_tokenizer_files(directory, SIZES.text_vocab_size - special_token_count(COSYVOICE3))
    return TextTokenizer.from_model_dir(directory)


def counting(view: TurnView) -> Iterator[int]:
    """Speech, and eos from 30 ids on, where that is allowed."""
    for number in range(10_000):
        if number >= 30:
            yield SPACE.eos
        yield SPACE.speech_offset + 60 + number % 50


def fed(tokenizer: TextTokenizer, pieces: Sequence[str], script: Script = counting, **changes: Any) -> tuple[list[int], Mailbox]:
    """All ids of the sequence, and what the session gave out. One piece: the whole text at once."""
    engine, mailbox = ScriptedEngine(SPACE, script), Mailbox()
    parts = LanguageModelParts(tokenizer, SIZES, engine, family=COSYVOICE3)
    service = SpeechTokenService(RuntimeConfig(drain_timeout_s=0.0), parts=parts, run_timer=False)
    start = LanguageModelStart("a", pieces[0].encode(), len(pieces) == 1, "", np.zeros(0, np.int32), GenerationOptions())
    service.start(replace(start, **changes), mailbox)
    for number, piece in enumerate(pieces[1:], 2):
        service.append("a", piece.encode(), number == len(pieces))
    assert mailbox.ended.is_set() and mailbox.reason is FinishReason.EOS
    service.close()
    return engine.opened[0].sequence, mailbox


PROMPTS: dict[str, tuple[dict[str, Any], str, str, int]] = {
    "nothing": ({}, DEFAULT, "", 0),
    "a voice": ({"prompt_text": "She said.", "prompt_speech_tokens": np.arange(20, dtype=np.int32)}, DEFAULT, "She said.", 20),
    "a voice as upstream's caller writes it": (
        {"prompt_text": f"Loudly.{END_OF_PROMPT}She said.", "prompt_speech_tokens": np.arange(20, dtype=np.int32)},
        f"Loudly.{END_OF_PROMPT}",
        "She said.",
        20,
    ),
    "an instruction in its place": (
        {"prompt_text": f"Loudly.{END_OF_PROMPT}", "prompt_speech_tokens": np.arange(20, dtype=np.int32)},
        f"Loudly.{END_OF_PROMPT}",
        "",
        0,
    ),
    "a wish": ({"options": GenerationOptions(instruct_text="Loudly.")}, f"{COSYVOICE3.default_instruction} Loudly.{END_OF_PROMPT}", "", 0),
}


@pytest.mark.parametrize("name", PROMPTS)
def test_the_whole_text_behind_each_prompt(tokenizer: TextTokenizer, name: str) -> None:
    changes, instruction, transcript, speech = PROMPTS[name]
    text = "It rained [AA1][T] all day."
    sequence, _ = fed(tokenizer, [text], **changes)
    head = [*tokenizer.encode(instruction), *tokenizer.encode(transcript), *tokenizer.encode(text)]
    expected = [SPACE.sos, *head, SPACE.task, *range(SPACE.speech_offset, SPACE.speech_offset + speech)]
    assert sequence[: len(expected)] == expected and all(map(SPACE.is_speech, sequence[len(expected) :]))


@pytest.mark.parametrize("name", PROMPTS)
def test_text_in_pieces_waits_behind_each_prompt(tokenizer: TextTokenizer, name: str) -> None:
    changes, instruction, transcript, _ = PROMPTS[name]
    text = "It rained all day, and nobody came."
    sequence, _ = fed(tokenizer, ["", *text], **changes)
    lead = [SPACE.sos, *tokenizer.encode(instruction)]
    assert sequence[: len(lead)] == lead
    told = [token_id for token_id in sequence[len(lead) :] if token_id < SPACE.speech_offset]
    assert told == [*tokenizer.encode(transcript), *tokenizer.encode(text)]


@pytest.mark.parametrize("in_pieces", [False, True])
def test_a_text_may_bring_its_own_instruction(tokenizer: TextTokenizer, in_pieces: bool) -> None:
    """Cross-lingual, as upstream's callers write it: no second instruction, and its tokens ask for no speech."""
    own, text = f"{COSYVOICE3.default_instruction}{END_OF_PROMPT}", "[breath]It rained all day, and nobody came."
    sequence, mailbox = fed(tokenizer, [own + text[:9], *text[9:]] if in_pieces else [own + text])
    lead = [SPACE.sos, *tokenizer.encode(own)]
    told = [token_id for token_id in sequence if token_id < SPACE.speech_offset or token_id == SPACE.sos]
    assert told == [*lead, *tokenizer.encode(text)]
    last = mailbox.messages[-1]
    assert isinstance(last, SpeechTokens) and last.text_consumed == len(own + text)


def test_long_silence_is_shortened_on_its_way_out_alone(tokenizer: TextTokenizer) -> None:
    def pausing(view: TurnView) -> Iterator[int]:
        yield from (SPACE.speech_offset + token for token in (60, *SILENT, *SILENT, 61, *SILENT, 62))
        yield SPACE.eos

    sequence, mailbox = fed(tokenizer, ["Yes."], pausing)
    assert mailbox.tokens == [60, *SILENT, 61, *SILENT, 62]
    assert len([token_id for token_id in sequence if SPACE.is_speech(token_id)]) == 18


def test_pronunciation_counts_as_speech_and_marks_do_not(tokenizer: TextTokenizer) -> None:
    limits: list[int] = []

    def seen(view: TurnView) -> Iterator[int]:
        limits.append(view.limits.min_new_ids)
        yield from counting(view)

    for text in ("[AA1][T] a", "[breath]<strong> a"):
        fed(tokenizer, [text], seen)
    spoken_tokens = len(tokenizer.encode(" a"))
    assert limits == [2 * (2 + spoken_tokens), 2 * spoken_tokens]


@pytest.mark.parametrize("pieces", [1, 2, 7])
def test_a_phoneme_of_ssml_is_the_token_and_an_instruction_in_it_is_none(tokenizer: TextTokenizer, pieces: int) -> None:
    ssml = 'One <phoneme alphabet="pinyin" ph="chong2">two</phoneme> &lt;|endofprompt|> three'
    size = -(-len(ssml) // pieces)
    cut = [ssml[start : start + size] for start in range(0, len(ssml), size)]
    marked, _ = fed(tokenizer, cut, options=GenerationOptions(text_type="ssml", text_normalization="raw"))
    plain, _ = fed(tokenizer, ["One [ch][óng] three"] if pieces == 1 else ["One [ch][óng]", " three"])
    special = {tokenizer.special_tokens[token] for token in ("[ch]", "[óng]", END_OF_PROMPT)}
    assert [one for one in marked if one in special] == [one for one in plain if one in special]
    assert marked.count(tokenizer.special_tokens[END_OF_PROMPT]) == 1, "of the default instruction"


PRONOUNCED = {
    "nginx": ("cmu-arpabet", "EH1 N JH IH0 N EH1 K S"),
    "重庆": ("pinyin", "chong2 qing4"),
    "New York": ("ipa", "nuː ˈjɔːɹk"),
}
LEXICON = json.dumps({phrase: {"alphabet": alphabet, "ph": written} for phrase, (alphabet, written) in PRONOUNCED.items()})


@given(
    words=st.lists(st.sampled_from([*PRONOUNCED, "in", "20", "SQL", "well, then", "\U000f0001"]), min_size=1, max_size=6),
    cuts=st.lists(st.integers(0, 99), max_size=6),
    reading=st.sampled_from(["off", "auto"]),
)
@settings(max_examples=25, deadline=None)
def test_phonemes_of_a_lexicon_are_those_of_ssml_whatever_the_cuts(
    tokenizer: TextTokenizer, words: list[str], cuts: list[int], reading: str
) -> None:
    """A private character of the text is none of the phonemes that stand as such between the stages."""
    text = f"Say {' '.join(words)}."
    ends = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in zip(ends, ends[1:], strict=False)]
    spoken, mailbox = fed(tokenizer, pieces, options=GenerationOptions(lexicon=LEXICON, text_normalization=reading))
    marked = " ".join(
        '<phoneme alphabet="{}" ph="{}">x</phoneme>'.format(*PRONOUNCED[word]) if word in PRONOUNCED else word for word in words
    )
    options = GenerationOptions(text_type="ssml", text_normalization=reading)
    expected, _ = fed(tokenizer, [f"Say {marked}."], options=options)
    ids = [[one for one in found if not SPACE.is_speech(one)] for found in (spoken, expected)]
    assert ids[0] == ids[1]
    last = mailbox.messages[-1]
    assert isinstance(last, SpeechTokens) and last.text_consumed == len(text)
