"""What a checkpoint says of itself in ``training.json``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bistream.checkpoints.model_card import MODEL_CARD_FILE, ModelCard, read_model_card
from bistream.errors import CheckpointError
from bistream.families.spark import SPARK

SHIPPED = Path(__file__).resolve().parents[3] / "assets/voice"


def test_a_directory_without_the_file_counts_as_a_released_checkpoint(tmp_path: Path) -> None:
    assert read_model_card(tmp_path) == read_model_card("") == ModelCard(30.0, frozenset(), True)
    (tmp_path / "BiCodec").mkdir()
    (tmp_path / SPARK.yaml_names[0]).write_text("")
    spark = ModelCard(30.0, frozenset({"en", "zh"}), can_be_instructed=False, takes_labels=True, has_speed=False)
    assert read_model_card(tmp_path) == spark
    (tmp_path / MODEL_CARD_FILE).write_text("{}")
    assert read_model_card(tmp_path).takes_labels, "the family alone decides it"


def test_marks_that_a_checkpoint_does_not_know(tmp_path: Path) -> None:
    assert '"' in read_model_card(SHIPPED).unknown_marks
    (tmp_path / MODEL_CARD_FILE).write_text(json.dumps({"unknown_marks": "()"}))
    assert read_model_card(tmp_path).unknown_marks == frozenset("()")


@pytest.mark.parametrize(
    "text",
    [
        "{", "[]", '{"longest_utterance_s": 0}', '{"longest_utterance_s": NaN}', '{"languages": "en"}', '{"languages": [1]}',
        '{"can_be_instructed": "no"}', '{"unknown_marks": "a b"}',
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_understood_is_refused_by_name(text: str, tmp_path: Path) -> None:
    (tmp_path / MODEL_CARD_FILE).write_text(text)
    with pytest.raises(CheckpointError, match=MODEL_CARD_FILE):
        read_model_card(tmp_path)
