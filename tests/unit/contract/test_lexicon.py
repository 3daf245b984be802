"""A lexicon is a JSON object of respellings and phonemes within limits; an error in it is one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bistream.contract.lexicon import (
    MAX_ENTRIES,
    MAX_PHRASE_CHARS,
    MAX_RESPELLING_CHARS,
    Phonemes,
    lexicon_text,
    read_lexicon,
    written_lexicon,
)
from bistream.errors import InvalidInputError


def test_entries_are_phrases_and_respellings() -> None:
    assert read_lexicon('{"Nguyen": "win", "重庆": "虫庆"}') == {"Nguyen": "win", "重庆": "虫庆"}
    assert read_lexicon('{"a": {"ph": "EY1", "alphabet": "cmu-arpabet"}}') == {"a": Phonemes("cmu-arpabet", "EY1")}
    assert read_lexicon(" \n") == {}


def test_blanks_are_no_lexicon_but_count() -> None:
    with pytest.raises(InvalidInputError, match="longer than"):
        read_lexicon(" " * 70_000)


@pytest.mark.parametrize("text", ("Nguyen", "[]", '"a"', "{", "[" * 5000))
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="must be a JSON object"):
        read_lexicon(text)


@pytest.mark.parametrize(
    "value", (1, None, ["b"], {"ph": "B"}, {"alphabet": "ipa", "ph": 1}, {"alphabet": 1, "ph": "B"}, {"alphabet": "ipa", "pf": "B"})
)
def test_what_is_neither_a_respelling_nor_phonemes_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInputError, match="must give 'a' a respelling or phonemes"):
        read_lexicon(json.dumps({"a": value}))


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"": "a"}, "phrase ''"),
        ({"...": "dots"}, "phrase '...'"),
        ({"a" * (MAX_PHRASE_CHARS + 1): "b"}, f"at most {MAX_PHRASE_CHARS}"),
        ({"a": " "}, "respells 'a'"),
        ({"a": {"alphabet": "pinyin", "ph": ""}}, "respells 'a'"),
        ({"a": "b" * (MAX_RESPELLING_CHARS + 1)}, f"more than {MAX_RESPELLING_CHARS}"),
        ({f"word{index}": "b" for index in range(MAX_ENTRIES + 1)}, f"more than {MAX_ENTRIES} entries"),
        ({f"word{index}": "b" * 100 for index in range(MAX_ENTRIES)}, "longer than"),
    ],
)
def test_the_limits(entries: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        read_lexicon(json.dumps(entries))


def test_what_is_written_is_as_long_as_what_was_read() -> None:
    entries = {f"重庆{index}": "虫庆" * 30 for index in range(600)} | {"\ud800x": "y"}
    assert len(read_lexicon(written_lexicon(entries))) == len(entries)
    assert "虫庆" in written_lexicon(entries)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "words.json").write_text('{"SQL": "sequel"}')
    assert lexicon_text(tmp_path / "words.json") == '{"SQL": "sequel"}'
    (tmp_path / "latin.json").write_bytes(b'{"caf\xe9": "a"}')
    for name in ("latin.json", "none.json"):
        with pytest.raises(InvalidInputError, match=f"{name} cannot be read"):
            lexicon_text(tmp_path / name)
