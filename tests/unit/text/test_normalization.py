"""Normalised text is the same for every cut of a text; it is committed early, never changed, and counted in the caller's characters."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.errors import ConfigError, InvalidInputError
from bistream.text import normalization
from bistream.text.normalization import (
    TextNormalizer,
    aligned,
    load_read_out,
    make_normalizer,
    normalize_text,
    read_transcript,
)
from bistream.text.preparation import PreparedCharacter, TextPreparation
from bistream.text.reading_context import Language
from bistream.text.spans import MAX_HELD_CHARS, SpanCutter
from bistream.text.tokenizer import TextTokenizer
from tests.unit.text.pieces import stream

SNIPPETS = (
    "5", "12.50", "$", "¥", "%", "km", "km/h", " km", "年", "月", "日", "点", "个", "人", "，", "。", ".", ",", " ", "  ", "\n", "-",
    "May", "Dr.", "Mr", "hello", "I can't", "你好", "的", "https://a.b/c?d=1", "bob@example.com", "p.m.", "(", ")", "**", '"', "5", "の",
    "한국", "\u0301", "½", "½", "３：３０", "²", "'", "a" * 40, "[laughter]", "<strong>", "[lau", "<",
)  # fmt: skip
TEXTS = st.lists(st.one_of(st.sampled_from(SNIPPETS), st.characters(exclude_categories=["Cs"])), max_size=24).map("".join)
CUTS = st.lists(st.integers(0, 400), max_size=30)
MODES = st.sampled_from(("auto", "zh", "en"))


def marked(expression: str, language: Language, kind: str = "") -> str:
    """Stands for the library: shows where each expression begins and ends, and its language."""
    return f"{language}({expression.upper()[::-1]})"


class Reading(TextPreparation):
    """Without the stages before it."""

    def __init__(self, mode: str = "auto") -> None:
        super().__init__()
        self._stages = [TextNormalizer(mode, "zh", marked, self._emit)]


def normalized(text: str, mode: str) -> list[PreparedCharacter]:
    reading = Reading(mode)
    return [*reading.push(text), *reading.finish(is_end=True)]


@settings(max_examples=80)
@given(text=TEXTS, mode=MODES)
def test_all_of_the_text_is_covered(text: str, mode: str) -> None:
    characters = normalized(text, mode)
    assert sum(one.source_characters for one in characters) == len(text)
    assert bool("".join(one.character for one in characters).strip()) == bool(text.strip())


@settings(max_examples=60)
@given(text=TEXTS, mode=MODES)
def test_spans_are_the_text_and_little_is_held_back(text: str, mode: str) -> None:
    cutter = SpanCutter(None if mode == "auto" else "zh" if mode == "zh" else "en")
    out = ""
    for index, character in enumerate(text, start=1):
        out += "".join(span.text for span in cutter.push(character))
        assert text.startswith(out)
        assert index - len(out) < MAX_HELD_CHARS
    assert out + "".join(span.text for span in cutter.finish()) == text


@given(source=st.text(st.sampled_from("ab5"), min_size=1, max_size=8), spoken=st.text(st.sampled_from("ab5"), min_size=1, max_size=8))
def test_alignment_covers_all_of_the_source_and_never_too_early(source: str, spoken: str) -> None:
    characters = aligned(source, spoken)
    assert "".join(character for character, _ in characters) == spoken
    covered = 0
    for index, (_, count) in enumerate(characters, start=1):
        covered += count
        is_same_so_far = spoken[:index] == source[:covered]
        is_same_from_here = spoken[index:] == source[covered:]
        assert count == 0 or is_same_so_far or is_same_from_here
    assert covered == len(source)


@settings(max_examples=60)
@given(text=TEXTS, cuts=CUTS)
def test_ids_of_any_cut_are_those_of_the_normalised_text(tokenizer: TextTokenizer, text: str, cuts: list[int]) -> None:
    tokens = stream(tokenizer, text.encode(), cuts, Reading())
    assert tokens == stream(tokenizer, text.encode(), [], Reading())
    ends = [token.end_char for token in tokens]
    assert ends == sorted(ends)
    if text:
        assert ends[-1] == len(text)
    spoken = "".join(one.character for one in normalized(text, "auto"))
    if len(spoken) < 30 and not {"[", "<"} & set(text):
        assert [token.id for token in tokens] == tokenizer.encode(spoken)


def test_special_tokens_pass_and_end_an_expression(tokenizer: TextTokenizer) -> None:
    text = "<strong>5</strong>[laughter] 7 km[breath]"
    ids = [token.id for token in stream(tokenizer, text.encode(), [9, 20], Reading())]
    special = tokenizer.special_tokens
    positions = [ids.index(special[token]) for token in ("<strong>", "</strong>", "[laughter]", "[breath]")]
    assert positions == sorted(positions)
    assert ids[-1] == special["[breath]"]
    assert ids[positions[0] + 1 : positions[1]] == tokenizer.encode("zh(5)")


def test_plain_words_wait_for_their_end_and_expressions_for_what_decides_them() -> None:
    def held(text: str) -> list[int]:
        cutter, out = SpanCutter(), 0
        waiting = []
        for index, character in enumerate(text, start=1):
            out += sum(len(span.text) for span in cutter.push(character))
            waiting.append(index - out)
        return waiting

    assert held("I have") == [1, 0, 1, 2, 3, 4]
    assert held("have 5 apples ") == [1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0]
    assert held("今天很好") == [0, 0, 0, 0]
    assert held("有12本书。") == [0, 1, 2, 3, 0, 0]
    assert held("在2024年5月1日开会") == [0, *range(1, 10), 0, 0]


LIBRARY = [
    ("他出生于1990年，今年34岁。", "他出生于一九九零年，今年三十四岁。"),
    ("请在5-10分钟内到3号楼101室。", "请在五到十分钟内到三号楼一百零一室。"),
    ("价格是¥12.50，约30%。", "价格是十二点五零元，约百分之三十。"),
    ("共1,234,567元", "共一百二十三万四千五百六十七元"),
    ("速度120km/h，面积3m²。", "速度每小时一百二十公里，面积三平方米。"),
    ("我买了iPhone 15 Pro，花了$999。", "我买了iPhone 十五 Pro，花了九百九十九美元。"),
    ("2个苹果 or 2 apples? 5 apples.", "两个苹果 or 二 apples? five apples."),
    ("The price is $12.50, please pay.", "The price is twelve dollars and fifty cents, please pay."),
    ("Dr. Smith ran 5 km at 3:30 p.m.", "doctor Smith ran five kilometers at three thirty PM"),
    ("On May 5, 2024, 50% came.", "On May fifth, twenty twenty four, fifty percent came."),
    ("in the 1990s  5  people", "in the nineteen nineties five  people"),
    ("Mail bob@example.com (#5) now.", "Mail bob at example dot com (number five) now."),
    ("The meeting is at 3:30. 会议在3:30开始。", "The meeting is at three thirty. 会议在三点三十分开始。"),
    ("**5** items", "**five** items"),
    ("Цена 5 рублей, 価格は5円です。", "Цена 5 рублей, 価格は5円です。"),
]


@pytest.mark.parametrize(("text", "spoken"), LIBRARY)
def test_the_library_reads_out(text: str, spoken: str) -> None:
    assert normalize_text(text, "auto", load_read_out()) == spoken


def test_a_mode_decides_the_language() -> None:
    assert [normalize_text("12", mode, load_read_out()) for mode in ("zh", "en", "auto")] == ["十二", "twelve", "twelve"]
    session = TextPreparation(make_normalizer("auto", "你好"))  # the transcript's language, until the text shows its own
    assert "".join(one.character for one in (*session.push("12"), *session.finish(is_end=True))) == "十二"
    assert make_normalizer("off", "") is None
    assert read_transcript("5 apples", "off") == "5 apples"
    assert read_transcript("5 apples", "auto") == "five apples"


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    load_read_out.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    try:
        with pytest.raises(InvalidInputError, match="wetext"):
            make_normalizer("auto", "")
        assert normalization.make_normalizer("off", "") is None
        from bistream.config import RuntimeConfig  # noqa: PLC0415
        from bistream.text2token.service import SpeechTokenService  # noqa: PLC0415

        with pytest.raises(ConfigError, match="wetext"):
            SpeechTokenService(RuntimeConfig(model_dir=str(tmp_path), text_normalization="auto"))
    finally:
        load_read_out.cache_clear()
