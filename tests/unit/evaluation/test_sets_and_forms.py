"""What is spoken, and in which forms."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bistream.client.say import split_pieces
from bistream.config import RuntimeConfig
from bistream.errors import BistreamError
from bistream.evaluation.forms import KINDS, make_forms, pairs_of
from bistream.evaluation.sets import BUILT_IN, read_sets, spoken_and_left_out
from bistream.evaluation.speaking import configured

COUNTS = {"english": 100, "chinese": 100, "mixed": 40, "hard": 40, "paragraphs": 20}


def test_the_built_in_sets_are_whole() -> None:
    found = read_sets(BUILT_IN, None)
    assert {name: sum(one.set_name == name for one in found) for name in BUILT_IN} == COUNTS
    assert len({one.text for one in found}) == len(found) == len({(one.set_name, one.id) for one in found})
    assert [one.number for one in found] == list(range(len(found)))
    assert {one.language for one in found if one.set_name in ("chinese", "mixed")} == {"zh"}
    assert {one.language for one in found if one.set_name == "english"} == {"en"}
    assert all(any(letter.isascii() and letter.isalpha() for letter in one.text) for one in found if one.set_name == "mixed")


def test_sentences_in_other_languages_are_left_out_with_a_line() -> None:
    found = read_sets(["english", "hard", "chinese"], 40)
    spoken, lines = spoken_and_left_out(found, frozenset({"en"}))
    assert {one.language for one in spoken} == {"en"} and len(lines) == 2
    assert sum(int(line.split()[0]) for line in lines) == len(found) - len(spoken)
    assert spoken_and_left_out(found, frozenset()) == (found, [])


def test_pieces_of_chinese_are_characters() -> None:
    for one in read_sets(["chinese", "english"], 5):
        pieces = split_pieces(one.text)
        assert "".join(pieces) == one.text
        assert one.language == "en" or max(len(piece.strip("，。？")) for piece in pieces) <= 1


def test_sets_of_others(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text('{"text": "One."}\n{"id": "x", "text": "Deux.", "language": "fr"}\n', encoding="utf-8")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/a.wav").touch()
    (tmp_path / "theirs/meta.lst").write_text("u1|What is said.|a.wav|What to say.|a.wav\n", encoding="utf-8")
    found = read_sets([f"mine={tmp_path}/mine.jsonl", f"seed-tts-en={tmp_path}/theirs"], None)
    assert [(one.set_name, one.id, one.text, one.language) for one in found] == [
        ("mine", "0001", "One.", "en"),
        ("mine", "x", "Deux.", "fr"),
        ("seed-tts-en", "u1", "What to say.", "en"),
    ]
    assert found[2].recording == tmp_path / "theirs/a.wav" and found[2].transcript == "What is said."


@pytest.mark.parametrize("given", [["nothing"], ["english", "english"], ["x=nowhere.jsonl"], ["x=FILE"]])
def test_sets_that_are_none_are_refused(given: list[str], tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps({"text": "a"}) + "\n[]\n", encoding="utf-8")
    with pytest.raises(BistreamError):
        read_sets([one.replace("FILE", f"{tmp_path}/x.jsonl") for one in given], None)


def test_a_comparison_differs_from_its_base_by_its_setting() -> None:
    forms = make_forms(KINDS, ["solver_steps=5", "one_shot:dtype=bfloat16"], [])
    assert [form.name for form in forms] == [*KINDS, "solver_steps=5", "one_shot:dtype=bfloat16"]
    configs = {form.name: configured(RuntimeConfig(solver_steps=7), form) for form in forms}
    assert configs["word_by_word"] == RuntimeConfig(solver_steps=7)
    assert configs["solver_steps=5"] == RuntimeConfig(solver_steps=5)
    assert configs["reference"] == RuntimeConfig(kernels="plain", dtype="float32")
    assert {("solver_steps=5", "word_by_word"), ("word_by_word", "one_shot"), ("one_shot", "reference")} <= set(pairs_of(forms))


def test_the_base_of_a_comparison_is_spoken_too() -> None:
    assert [form.name for form in make_forms(["one_shot"], ["solver_steps=5"], [])] == ["one_shot", "word_by_word", "solver_steps=5"]


@pytest.mark.parametrize("given", ["state=8bit", "solver_steps=99", "solver_steps", "aloud:solver_steps=5"])
def test_comparisons_that_are_none_are_refused_in_a_sentence(given: str) -> None:
    with pytest.raises(BistreamError) as refused:
        make_forms(KINDS, [given], [])
    assert "\n" not in refused.value.sentence
