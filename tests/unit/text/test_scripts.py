"""Text in a script that the checkpoint's languages do not use is refused, however it is cut; foreign words inside a text are not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.errors import InvalidInputError
from bistream.text.scripts import ScriptGuard

ENGLISH = frozenset({"en"})
CHINESE = "今天天气不错，我们去公园散步吧。"
RUSSIAN = "Сегодня хорошая погода."
STORY = "A calm story about a boat on a wide river that came home late in the evening. "
MIXED = st.lists(st.sampled_from([*"ab 1,.—", "word ", "你", "好", "Привет ", "ة", "😀"]), max_size=60).map("".join)


def passes(text: str, languages: frozenset[str] = ENGLISH, size: int = 0, is_end: bool = True) -> bool:
    """size: of the pieces; 0: the whole text at once."""
    guard = ScriptGuard(languages)
    pieces = [text[begin : begin + size] for begin in range(0, len(text), size)] if size else [text]
    try:
        for piece in pieces:
            guard.push(piece, False)
        guard.push("", is_end)
    except InvalidInputError:
        return False
    return True


@settings(max_examples=40)
@given(MIXED, st.integers(1, 7))
def test_the_answer_does_not_depend_on_the_cuts(text: str, size: int) -> None:
    assert passes(text) == passes(text, size=size)
    assert passes(text, is_end=False) == passes(text, size=size, is_end=False)


@settings(max_examples=40)
@given(st.text(st.characters(max_codepoint=0x24F)))
def test_what_is_written_in_the_languages_script_always_passes(text: str) -> None:
    assert passes(text)


@settings(max_examples=40)
@given(MIXED)
def test_without_a_known_restriction_everything_passes(text: str) -> None:
    assert passes(text, frozenset()) and passes(text, frozenset({"en", "xx"})) and passes(text, frozenset({"en", "zh", "ru", "ar"}))


@pytest.mark.parametrize(
    "text",
    [CHINESE, RUSSIAN, "你好", "茶", "2026年", "مرحبا بكم", "नमस्ते", "こんにちは世界", "안녕하세요", f"OK {CHINESE}", STORY + 4 * CHINESE],
)
def test_a_text_in_another_script_is_refused(text: str) -> None:
    assert not passes(text) and not passes(text, size=1)


@pytest.mark.parametrize("text", [CHINESE, RUSSIAN, STORY + 4 * CHINESE])
def test_a_text_that_goes_on_is_refused_before_its_end(text: str) -> None:
    assert not passes(text, size=1, is_end=False)


@pytest.mark.parametrize(
    "text",
    [
        "Say 你好 to her.",
        "Hello 世界",
        "北京 is the capital of China.",
        "Москва means Moscow.",
        f"She read {CHINESE} aloud, and then all of us went home through the park.",
        "ＦＵＬＬ ｗｉｄｔｈ and 𝐛𝐨𝐥𝐝",
        "Ångström, naïve, Dvořák, Nguyễn",
        "The angle α is π/2, 5 µm wide.",
        "12:30, 5 € — 😀",
        "Hello! 你好! Hola! नमस्ते! Bonjour! こんにちは! مرحبا! 안녕하세요! Ciao! Cześć! Привіт! வணக்கம்!",  # of a vendor's quick start
        "",
    ],
)
def test_foreign_words_in_a_text_are_left_to_the_model(text: str) -> None:
    assert passes(text) and passes(text, size=1)


def test_the_sentence_names_what_is_spoken() -> None:
    with pytest.raises(InvalidInputError, match="speaks de, en, and the text is in another script"):
        ScriptGuard(frozenset({"en", "de"})).push(CHINESE, True)


def test_other_checkpoints_have_other_scripts() -> None:
    assert passes(CHINESE, frozenset({"zh"})) and passes("こんにちは", frozenset({"ja"})) and passes(RUSSIAN, frozenset({"ru"}))
    assert not passes(STORY, frozenset({"zh"})) and not passes("こんにちは", frozenset({"zh"}))
