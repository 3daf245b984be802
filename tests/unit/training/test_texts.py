"""The text side of training: nothing held out reaches the training text, and a text's normal form decides what is equal."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training import heldout, wordnet
from training.grammar import Grammar
from training.normalise import text_hash, word_errors, words_of
from training.texts import read_texts, rows_of_rare_words, write_texts


@settings(deadline=None)
@given(st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126), max_size=60))
def test_hash_ignores_case_signs_and_blanks(text: str) -> None:
    assert text_hash(text) == text_hash(f"  {text.upper()} !")
    assert all(word.isalpha() and word.islower() for word in words_of(text))


def test_digits_are_words() -> None:
    assert words_of("It's 7:30, twenty-one") == ["its", "seven", "three", "zero", "twenty", "one"]


@pytest.mark.parametrize("name", heldout.NAMES)
def test_sets_are_hashed_and_kept_out(name: str) -> None:
    lines = heldout.sentences(name)
    assert len(lines) == {"a": 100, "b": 100, "c": 20, "d": 50, "e": 10}[name]
    assert all(heldout.meets(line.upper()) for line in lines)


def test_sets_have_no_sentence_in_common() -> None:
    lines = [text_hash(line) for name in heldout.NAMES for line in heldout.sentences(name)]
    assert len(set(lines)) == len(lines) == len(heldout.hashes())


def test_removed_words_are_every_second_of_set_d() -> None:
    words = [word for line in heldout.sentences("d") for word in words_of(line)]
    assert set(words[::2]) == heldout.removed_words()
    others = {word for name in ("a", "b", "e") for line in heldout.sentences(name) for word in words_of(line)}
    assert not others & heldout.removed_words()
    assert heldout.meets(f"She said {words[0]} twice.")


def test_grammar_is_deterministic_and_mostly_new() -> None:
    first, second = Grammar(3), Grammar(3)
    drawn = [first.sentence() for _ in range(300)]
    assert drawn == [second.sentence() for _ in range(300)]
    assert len(set(drawn)) > 200 and any(any(sign.isdigit() for sign in text) for text in drawn)


def test_wordnet_examples(tmp_path: Path) -> None:
    gloss = '00001 03 n 01 x 0 000 | a thing; "he put the thing away"; "too short"; "she said 7 words to him"; "they saw a blocked thing"\n'
    for name in ("data.adj", "data.adv", "data.noun", "data.verb"):
        (tmp_path / name).write_text(
            '  1 the licence "is not an example of it"\n' + (gloss if name == "data.noun" else ""), encoding="latin-1"
        )
    found = wordnet.sentences(wordnet.quotes(tmp_path), frozenset({"blocked"}))
    assert found == ["he put the thing away"]  # the first of five stays as it is


def test_wordnet_definitions_of_known_words(tmp_path: Path) -> None:
    gloss = '00001 03 n 01 x 0 000 | the act of putting things away; a dodo in the far south; used up; "he put the thing away"\n'
    for name in ("data.adj", "data.adv", "data.noun", "data.verb"):
        (tmp_path / name).write_text(gloss if name == "data.noun" else "", encoding="latin-1")
    known = "the act of putting things away used up a in far south".split()
    assert list(wordnet.definitions(tmp_path, known)) == ["the act of putting things away", "used up"]
    assert wordnet.sentences(wordnet.definitions(tmp_path, known), frozenset()) == ["the act of putting things away"]


@settings(deadline=None)
@given(st.lists(st.sampled_from(["river", "house", "stone", "tree"]), max_size=20), st.integers(0, 4))
def test_rows_bring_every_word_to_its_count(spoken: list[str], least: int) -> None:
    words, texts = ["river", "house", "stone", "tree"], [" ".join(spoken)]
    rows = rows_of_rare_words(words, texts, least, seed=1)
    counts = [sum(words_of(text).count(word) for text in [*texts, *rows]) for word in words]
    assert all(count >= least for count in counts)


def test_texts_survive_their_file(tmp_path: Path) -> None:
    texts = [("wordnet", "He said “no”."), ("grammar", "4 2.")]
    write_texts(texts, tmp_path / "sub" / "texts.jsonl.xz")
    assert read_texts(tmp_path / "sub" / "texts.jsonl.xz") == texts


WORDS = st.lists(st.sampled_from(["a", "b", "c"]), max_size=6)


@settings(deadline=None)
@given(WORDS, WORDS)
def test_word_errors(wanted: list[str], heard: list[str]) -> None:
    errors = word_errors(wanted, heard)
    assert (errors == 0) == (wanted == heard or not wanted)
    assert min(len(wanted), abs(len(wanted) - len(heard))) <= errors <= len(wanted)
    assert word_errors(wanted, []) == len(wanted)


def test_word_errors_of_examples() -> None:
    assert word_errors("the cat sat".split(), "the sat".split()) == 1
    assert word_errors("the cat sat".split(), "a cat sat down".split()) == 2
    assert word_errors(["yes"], ["and"] * 50) == 1
