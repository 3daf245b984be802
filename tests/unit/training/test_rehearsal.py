"""A rehearsal speaks every line of its text once, and the language model may learn each of them."""

from __future__ import annotations

import json
from pathlib import Path

from training.corpus import plan_shards
from training.heldout import sentences
from training.language_model_data import HELD_BACK
from training.rehearse import make_folder
from training.texts import read_texts
from training.voices import DEFAULT_VOICE

ROOT = Path(__file__).resolve().parents[3]


def test_folder_of_a_rehearsal(tmp_path: Path) -> None:
    carried = tmp_path / "carried"
    carried.mkdir()
    (carried / "teachers.tar.xz").write_bytes(b"teachers")
    (carried / "texts.jsonl.xz").write_bytes(b"all texts")
    hours = make_folder(carried, tmp_path / "rehearsal", 16)
    assert make_folder(carried, tmp_path / "rehearsal", 16) == hours  # again over what is there
    assert (tmp_path / "rehearsal/carried/teachers.tar.xz").read_bytes() == b"teachers"
    texts = [text for _, text in read_texts(tmp_path / "rehearsal/carried/texts.jsonl.xz")]
    spoken = [text for task in plan_shards([len(text) for text in texts], hours, [DEFAULT_VOICE]) for text in task.texts]
    assert spoken == list(range(17))
    learned = [text for number, text in enumerate(texts) if number % HELD_BACK]
    assert learned == list(sentences("a")[:16])
    assert (carried / "texts.jsonl.xz").read_bytes() == b"all texts"


def test_every_sentence_has_the_length_of_its_teacher() -> None:
    """``tests/voice`` compares a trained voice with it; about 16 characters are a second of this teacher, digits aside."""
    seconds = json.loads((ROOT / "tests/voice/teacher_seconds.json").read_text(encoding="utf-8"))
    for name in ("a", "b"):
        assert len(seconds[name]) == len(sentences(name))
        rates = [len(text) / spoken for text, spoken in zip(sentences(name), seconds[name], strict=True) if text[0].isalpha()]
        assert len(rates) >= 80 and 10 < min(rates) and max(rates) < 22
