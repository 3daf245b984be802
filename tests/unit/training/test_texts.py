"""The text side of training: nothing held out reaches the training text, and a text's normal form decides what is equal."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.evaluation.texts import units_of
from training import heldout
from training.heldout import text_hash
from training.texts import as_sentences, definitions, rows_of_rare_words


@given(st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126), max_size=60))
def test_hash_ignores_case_signs_and_blanks(text: str) -> None:
    assert text_hash(text) == text_hash(f"  {text.upper()} !")
    assert all(word.isalpha() and word.islower() for word in units_of(text))


@pytest.mark.parametrize("name", heldout.NAMES)
def test_sets_are_hashed_and_kept_out(name: str) -> None:
    lines = heldout.sentences(name)
    assert len(lines) == {"a": 100, "b": 100, "c": 20, "d": 50, "e": 10}[name]
    assert all(heldout.meets(line.upper()) for line in lines)


def test_sets_have_no_sentence_in_common() -> None:
    lines = [text_hash(line) for name in heldout.NAMES for line in heldout.sentences(name)]
    assert len(set(lines)) == len(lines) == len(heldout.hashes())


def test_removed_words_are_every_second_of_set_d() -> None:
    words = [word for line in heldout.sentences("d") for word in units_of(line)]
    assert set(words[::2]) == heldout.removed_words()
    others = {word for name in ("a", "b", "e") for line in heldout.sentences(name) for word in units_of(line)}
    assert not others & heldout.removed_words()
    assert heldout.meets(f"She said {words[0]} twice.")


def test_wordnet_definitions_of_known_words(tmp_path: Path) -> None:
    gloss = '00001 03 n 01 x 0 000 | the act of putting things away; a dodo in the far south; used up; "he put the thing away"\n'
    for name in ("data.adj", "data.adv", "data.noun", "data.verb"):
        (tmp_path / name).write_text(gloss if name == "data.noun" else "", encoding="latin-1")
    known = "the act of putting things away used up a in far south".split()
    assert list(definitions(tmp_path, known)) == ["the act of putting things away", "used up"]
    assert as_sentences(definitions(tmp_path, known), frozenset()) == ["the act of putting things away"]


@given(st.lists(st.sampled_from(["river", "house", "stone", "tree"]), max_size=20), st.integers(0, 4))
def test_rows_bring_every_word_to_its_count(spoken: list[str], least: int) -> None:
    words, texts = ["river", "house", "stone", "tree"], [" ".join(spoken)]
    rows = rows_of_rare_words(words, texts, least, seed=1)
    counts = [sum(units_of(text).count(word) for text in [*texts, *rows]) for word in words]
    assert all(count >= least for count in counts)
