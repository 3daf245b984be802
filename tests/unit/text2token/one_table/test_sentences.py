"""Sentences and their prompts: where a text is cut, what a sentence continues, and that it fits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.checkpoints.one_table import OneTableConfig
from bistream.families.bicodec_tokens import BiCodecTokens
from bistream.families.spark import SPARK
from bistream.text2token.cut_places import CutPlaces
from bistream.text2token.engine import TokenSpace, TurnEnd, TurnResult
from bistream.text2token.layout import Turn
from bistream.text2token.one_table.continuation import Continuation, Spoken
from bistream.text2token.one_table.prompts import Labels, SpeakerTokens, joined
from bistream.text2token.one_table.sentence_layout import LEAST_SPEECH, SentenceLayout, sentence_limits
from bistream.text2token.one_table.tokenizer import PlainTextTokenizer
from bistream.text2token.speech_lengths import SpeechLengths
from bistream.types import FinishReason
from scripts._tokenizer_files import make_vocabulary

TOKENS = BiCodecTokens(512, 256, 512)
SIZES = OneTableConfig.of({"vocab_size": 2560}, TOKENS, SPARK)
SPACE = TokenSpace.of(SIZES)
TOKENIZER = PlainTextTokenizer(*make_vocabulary(512), TOKENS)
LENGTHS = SpeechLengths(TOKENIZER.bytes_of, tokens_per_second=50)
SPEAKER = SpeakerTokens(tuple(range(32)))
RECORDING = Spoken("What was recorded.", tuple(range(100, 150)))
SEMANTIC = TOKENS.ids("bicodec_semantic")
STOP = TurnResult(TurnEnd.STOP, stop_id=SPACE.eos)
PIECES = "The river is long. and wide, Then we walked home! 今天的天气很好。 我们散步， 3.14 Dr. Who? a\n".split(" ")
WORDS = st.lists(st.sampled_from(PIECES), min_size=1)
TEXTS = st.lists(WORDS.map(" ".join), min_size=1, max_size=12).map(" ".join)


def layout(recording: Spoken | None = None, longest: int = 1500) -> SentenceLayout:
    continuation = Continuation(TOKENS, TOKENIZER.encode, SPEAKER, recording, longest)
    limits = sentence_limits(50, longest - 50, pace=1.0)
    return SentenceLayout(SPACE, continuation, limits, CutPlaces(TOKENIZER.bytes_of), LENGTHS, TOKENIZER.decode)


def content_of(turn: Turn) -> str:
    start, end = (turn.append_ids.index(TOKENS.id(name)) for name in ("start_content", "end_content"))
    return TOKENIZER.decode(turn.append_ids[start + 1 : end])


def codes_of(turn: Turn) -> list[int]:
    place = turn.append_ids.index(TOKENS.id("start_semantic_token"))
    return [one - SEMANTIC.start for one in turn.append_ids[place + 1 :]]


def speak(made: SentenceLayout, count: int, result: TurnResult = STOP) -> list[Turn]:
    """All turns that are ready; each yields ``count`` ids, which tell the sentence's number."""
    turns: list[Turn] = []
    while (turn := made.next_turn()) is not None:
        turns.append(turn)
        number = min(count, turn.limits.max_new_ids)
        made.turn_ended([SPACE.speech_offset + len(turns)] * number, result)
    return turns


@given(TEXTS, st.data())
def test_sentences_do_not_depend_on_the_pieces(text: str, data: st.DataObject) -> None:
    ids = TOKENIZER.encode(text)
    whole, pieces = layout(), layout()
    whole.push_text(ids)
    whole.end_text()
    begun: list[Turn] = []
    while ids:
        count = data.draw(st.integers(1, len(ids)))
        pieces.push_text(ids[:count])
        ids = ids[count:]
        begun += speak(pieces, 7)
    pieces.end_text()
    begun += speak(pieces, 7)
    assert [turn.limits for turn in begun] == [turn.limits for turn in speak(whole, 7)]
    assert pieces.finish_reason is whole.finish_reason is FinishReason.EOS
    assert pieces.num_text_used == pieces.num_text_pushed == pieces.num_text_ended == whole.num_text_pushed


@given(TEXTS, st.booleans(), st.integers(1, 400), st.integers(300, 1500))
def test_every_turn_fits_and_continues_whole_sentences(text: str, has_recording: bool, count: int, longest: int) -> None:
    made = layout(RECORDING if has_recording else None, longest)
    made.push_text(TOKENIZER.encode(text))
    made.end_text()
    turns = speak(made, count)
    own = list(RECORDING.semantic) if has_recording else []
    for number, turn in enumerate(turns, start=1):
        assert len(turn.append_ids) + turn.limits.max_new_ids <= longest
        assert turn.limits.min_new_ids == min(LEAST_SPEECH, turn.limits.max_new_ids) and turn.limits.forbidden_early == {SPACE.eos}
        assert turn.restarts == (number > 1)
        codes = codes_of(turn)
        assert codes[: len(own)] == own
        continued = sorted(set(codes[len(own) :]))
        assert continued == list(range(number - len(continued), number))  # the newest, without a gap
        assert content_of(turn).startswith(RECORDING.text if has_recording else "")
        said = content_of(turn).removeprefix(RECORDING.text if has_recording else "")
        assert "".join(said.split()) in "".join(text.split())


def test_a_text_is_spoken_while_it_is_written() -> None:
    made = layout()
    made.push_text(TOKENIZER.encode("The weather was clear this morning, so we walked along the river. She"))
    (turn,) = speak(made, 9)
    assert content_of(turn) == "The weather was clear this morning, so we walked along the river."
    assert made.finish_reason is None and made.num_text_ended == made.num_text_used < made.num_text_pushed
    made.push_text(TOKENIZER.encode(" asked whether the train would arrive on time."))
    assert speak(made, 9) == []
    made.end_text()
    (turn,) = speak(made, 9)
    assert content_of(turn).endswith("river. She asked whether the train would arrive on time.") and codes_of(turn) == [1] * 9
    assert made.finish_reason is FinishReason.EOS and made.num_speech == 18


@pytest.mark.parametrize("end", [TurnEnd.LENGTH, TurnEnd.STOP])
def test_what_was_cut_is_not_continued(end: TurnEnd) -> None:
    """A runaway ends with LENGTH as well."""
    sentences = ("The weather was clear this morning, so we walked. ", "She asked whether the train would arrive. ", "He said no.")
    made = layout()
    made.push_text(TOKENIZER.encode("".join(sentences)))
    made.end_text()
    first = made.next_turn()
    assert first is not None
    made.turn_ended([SPACE.speech_offset] * 9, TurnResult(end, stop_id=SPACE.eos if end is TurnEnd.STOP else None))
    second = made.next_turn()
    assert second is not None
    assert codes_of(second) == ([0] * 9 if end is TurnEnd.STOP else [])
    assert ("weather" in content_of(second)) == (end is TurnEnd.STOP)


@pytest.mark.parametrize(("end", "reason"), [(TurnEnd.CANCELLED, FinishReason.CANCELLED), (TurnEnd.ERROR, FinishReason.ERROR)])
def test_the_engine_ends_the_session(end: TurnEnd, reason: FinishReason) -> None:
    made = layout()
    made.push_text(TOKENIZER.encode("The weather was clear this morning. She asked whether the train would arrive."))
    made.end_text()
    assert made.next_turn() is not None
    made.turn_ended([], TurnResult(end))
    assert made.finish_reason is reason and made.next_turn() is None


def test_marks_alone_are_not_spoken() -> None:
    made = layout()
    made.push_text(TOKENIZER.encode("... !"))
    made.end_text()
    assert made.next_turn() is None and made.finish_reason is FinishReason.EOS and made.num_text_ended == made.num_text_pushed


def test_a_voice_of_labels_keeps_them_in_every_prompt() -> None:
    speaker = SpeakerTokens(tuple(range(32)), Labels("male", "low", "high"), pitch=210, speed=4)
    ids = Continuation(TOKENS, TOKENIZER.encode, speaker, None, 1500).prompt("Hello.", 100)
    names = [TOKENS.names[one - TOKENS.first] for one in ids if one >= TOKENS.first]
    assert names[:2] == ["<|task_controllable_tts|>", "<|start_content|>"]
    assert names[2:12] == [
        "<|end_content|>",
        "<|start_style_label|>",
        "<|gender_1|>",
        "<|pitch_label_1|>",
        "<|speed_label_3|>",
        "<|end_style_label|>",
        "<|start_acoustic_token|>",
        "<|pitch_value_210|>",
        "<|speed_value_4|>",
        "<|end_acoustic_token|>",
    ]
    assert names[-2:] == ["<|end_global_token|>", "<|start_semantic_token|>"]


@given(st.lists(st.integers(0, 255), min_size=32, max_size=32), st.none() | st.sampled_from(["female", "male"]), st.integers(0, 1000))
def test_a_voice_is_a_list_of_numbers(codes: Sequence[int], gender: str | None, pitch: int) -> None:
    voice = SpeakerTokens(tuple(codes)) if gender is None else SpeakerTokens(tuple(codes), Labels(gender, "low"), pitch, 3)
    assert SpeakerTokens.of(voice.numbers) == voice


@pytest.mark.parametrize(
    "numbers", [[], [0] * 31, [0] * 33, [256] * 32, [-1] * 32, [*[0] * 32, 2, 0, 0, 0, 0], [*[0] * 32, 0, 0, 0, 1001, 0], [0] * 36]
)
def test_other_numbers_are_no_voice(numbers: list[int]) -> None:
    with pytest.raises((ValueError, IndexError)):
        SpeakerTokens.of(numbers).ids(TOKENS)


@pytest.mark.parametrize(
    ("before", "after", "both"),
    [
        ("gospel.", "Actions", "gospel. Actions"),
        ("gospel. ", " Actions", "gospel. Actions"),
        ("福音。", "行动", "福音。行动"),
        ("gospel.", "行动", "gospel.行动"),
        ("福音。", "Actions", "福音。 Actions"),
        ("", " Actions", "Actions"),
        ("gospel.", "", "gospel."),
    ],
)
def test_a_blank_between_two_texts(before: str, after: str, both: str) -> None:
    assert joined(before, after) == both
