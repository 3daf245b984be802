"""A rehearsal speaks every line of its text once, and the language model may learn each of them."""

from __future__ import annotations

from pathlib import Path

from training.corpus import plan_shards
from training.heldout import sentences
from training.language_model_data import HELD_BACK
from training.rehearse import make_folder
from training.texts import read_texts
from training.voices import DEFAULT_VOICE


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
