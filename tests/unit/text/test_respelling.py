"""Words of a lexicon are respelled, whatever the cuts; text without them is unchanged and leaves as early."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.errors import ConfigError, InvalidInputError
from bistream.text.normalization import TextNormalizer
from bistream.text.preparation import PreparedCharacter, TextPreparation
from bistream.text.respelling import Respellings, ServerLexicon
from tests.unit.cuts import pieces_of

LEXICON = {
    "Nguyen": "win", "sql": "sequel", "SQL": "ess queue ell", "New York": "the big apple", "New York City": "en why see", "new": "fresh",
    "AI": "artificial intelligence", "重庆": "虫庆", "C++": "see plus plus", "don't": "do not", "café": "coffee house",
}  # fmt: skip
WORDS = (
    *LEXICON, *(phrase[:-1] for phrase in LEXICON), "the", "Sql", "NEW", "news", "York", "5", "用", "，", ".", "'s", "-", " ", " ", " ",
    "\n", "<b>", "\u0301", "\u2014", "HELLO",
)  # fmt: skip
TEXTS = st.lists(st.one_of(st.sampled_from(WORDS), st.characters(exclude_categories=["Cs"])), max_size=20).map("".join)
CUTS = st.lists(st.integers(0, 200), max_size=20)


def preparation_of(lexicon: dict[str, str] | None, max_more_chars: int = 4000, reads_numbers: bool = False) -> TextPreparation:
    read = partial(TextNormalizer, "auto", "en", lambda text, language, kind: f"({text})")
    normalizer = read if reads_numbers else None
    return TextPreparation(normalizer, False, frozenset(), None if lexicon is None else Respellings(lexicon), max_more_chars)


def prepared(text: str, preparation: TextPreparation, cuts: list[int] | None = None) -> list[PreparedCharacter]:
    pieces = [one for piece in pieces_of(text, cuts or []) for one in preparation.push(piece)]
    return pieces + preparation.finish(is_end=True)


def spoken(text: str, lexicon: dict[str, str] = LEXICON) -> str:
    return "".join(one.character for one in prepared(text, preparation_of(lexicon)))


@settings(max_examples=60)
@given(text=TEXTS, cuts=CUTS, reads_numbers=st.booleans())
def test_any_cut_gives_the_same_and_every_character_is_covered_once(text: str, cuts: list[int], reads_numbers: bool) -> None:
    whole = prepared(text, preparation_of(LEXICON, reads_numbers=reads_numbers))
    assert prepared(text, preparation_of(LEXICON, reads_numbers=reads_numbers), cuts) == whole
    assert sum(one.source_characters for one in whole) == len(text)


@settings(max_examples=40)
@given(text=TEXTS)
def test_text_without_words_of_the_lexicon_is_unchanged(text: str) -> None:
    assert prepared(text, preparation_of({"Zyzzyva": "beetle"})) == prepared(text, preparation_of(None))


@settings(max_examples=40)
@given(words=st.lists(st.sampled_from("the quick newt sequels York Newark it's NASA. I, dogs!".split()), min_size=1, max_size=12))
def test_other_text_leaves_as_early(words: list[str]) -> None:
    """With the blank after each word, as much is known as without a lexicon."""
    plain, respelled = preparation_of(None), preparation_of(LEXICON)
    for word in words:
        assert respelled.push(f"{word} ") == plain.push(f"{word} ")


@settings(max_examples=60)
@given(words=st.lists(st.sampled_from("the New York City new NEW Nguyen sql SQL AI don't mail SQLite York".split()), max_size=12))
def test_the_longest_whole_words_are_respelled(words: list[str]) -> None:
    """As a regular expression does that tries the longest phrases first."""

    def instead(found: re.Match[str]) -> str:
        return LEXICON.get(found[0], LEXICON.get(found[0].lower(), found[0]))

    text = " ".join(words)
    phrases = "|".join(phrase if phrase != phrase.lower() else f"(?i:{phrase})" for phrase in sorted(LEXICON, key=len, reverse=True))
    expected = re.sub(rf"(?<!\w)(?:{phrases.replace('+', re.escape('+'))})(?!\w)", instead, text)
    found = "".join(one.character for one in prepared(text, preparation_of(LEXICON)))
    assert found.lower() == expected.lower()  # words in capitals are read as words


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Mr. Nguyen's house", "Mr. win's house"),
        ("nguyen Nguyens xNguyen", "nguyen Nguyens xNguyen"),  # a capital is meant, and whole words are
        ("sql Sql SQL.", "sequel sequel ess queue ell."),
        ("New York, New  York City", "the big apple, en why see"),
        ("用AI做重庆菜", "用artificial intelligence做虫庆菜"),
        ("C++ and C+", "see plus plus and C+"),
        ("I don\u2019t", "I do not"),
        ("cafe\u0301, caf\u00e9, cafe", "coffee house, coffee house, cafe"),
        ("New Yorkers", "fresh Yorkers"),
        ("<em>SQL</em>ite", "SQLite"),
    ],
)
def test_what_is_spoken(text: str, said: str) -> None:
    assert spoken(text) == said


def test_a_respelling_is_not_looked_at_again_and_cannot_be_a_special_token() -> None:
    assert spoken("a b", {"a": "b", "b": "<|endofprompt|>"}) == "b <|endofprompt|>"


def test_a_text_cannot_become_much_longer() -> None:
    preparation = preparation_of({"a": "b" * 100}, max_more_chars=250)
    preparation.push("a a ")
    with pytest.raises(InvalidInputError, match="more than 250"):
        preparation.push("a ")


def test_entries_of_the_request_go_before_those_of_the_server(tmp_path: Path) -> None:
    path = tmp_path / "lexicon.json"
    path.write_text(json.dumps({"SQL": "sequel", "AI": "a eye"}))
    lexicon = ServerLexicon.from_file(str(path))
    both = lexicon.with_own('{"SQL": "ess queue ell"}')
    assert both is not None and (both.find("SQL"), both.find("AI")) == ("ess queue ell", "a eye")
    assert ServerLexicon().with_own(None) is None


def test_a_damaged_file_keeps_the_server_from_starting(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'lexicon'"):
        ServerLexicon.from_file(str(tmp_path / "none.json"))


def test_phonemes_that_the_model_has_not_are_refused(tmp_path: Path) -> None:
    entry = {"SQL": {"alphabet": "cmu-arpabet", "ph": "S IY1"}}
    with pytest.raises(InvalidInputError, match="knows no phonemes"):
        ServerLexicon().with_own(json.dumps(entry))
    with pytest.raises(InvalidInputError, match=r"no phoneme \[IY1\]"):
        ServerLexicon(phonemes=frozenset({"[S]"})).with_own(json.dumps(entry))
    path = tmp_path / "lexicon.json"
    path.write_text(json.dumps(entry))
    with pytest.raises(ConfigError, match="knows no phonemes"):
        ServerLexicon.from_file(str(path))
