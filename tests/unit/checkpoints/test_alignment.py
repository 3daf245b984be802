"""Which head of a checkpoint follows the text, as ``alignment.json`` says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.checkpoints.alignment import ALIGNMENT_FILE, Head, read_head, write_head
from bistream.checkpoints.config import LanguageModelConfig
from bistream.checkpoints.reader import read_config
from bistream.errors import CheckpointError

SIZES = LanguageModelConfig(num_hidden_layers=2, num_attention_heads=4)
heads = st.tuples(st.integers(0, 1), st.integers(0, 3))


@given(head=st.none() | heads)
def test_what_is_written_is_read(head: Head | None, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("model")
    assert read_head(folder, SIZES) is None, "a released checkpoint"
    write_head(folder / ALIGNMENT_FILE, head, {"peak": 0.5})
    assert read_head(folder, SIZES) == head


@pytest.mark.parametrize("head", [[2, 0], [0, 4], [0, -1], [-1, 0], [0], [0, 1, 2], [0.0, 1], "two", 3, {}])
def test_a_head_that_there_is_not(head: object, tmp_path: Path) -> None:
    (tmp_path / ALIGNMENT_FILE).write_text(json.dumps({"text_position_head": head}), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"alignment\.json could not be understood .*bistream doctor --align"):
        read_head(tmp_path, SIZES)


@pytest.mark.parametrize("text", ["", "[1, 0]", "{}", '{"text_position_head"', "null"])
def test_another_file(text: str, tmp_path: Path) -> None:
    (tmp_path / ALIGNMENT_FILE).write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"alignment\.json could not be understood"):
        read_head(tmp_path, SIZES)


def test_it_is_part_of_the_configuration(tiny_model_dir: Path, tmp_path: Path) -> None:
    assert read_config(tiny_model_dir).language_model.text_position_head is None
    for path in tiny_model_dir.iterdir():
        (tmp_path / path.name).symlink_to(path)
    write_head(tmp_path / ALIGNMENT_FILE, (1, 3))
    assert read_config(tmp_path).language_model.text_position_head == (1, 3)


def test_of_the_shipped_voice() -> None:
    assert read_config(Path(__file__).parents[3] / "assets" / "voice").language_model.text_position_head == (2, 0)
