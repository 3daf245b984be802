"""``bistream doctor --align`` finds the head that the training guided to the text that is spoken, among its three others."""

from __future__ import annotations

from pathlib import Path

from bistream.checkpoints.alignment import ALIGNMENT_FILE, read_head
from bistream.checkpoints.reader import read_config
from bistream.commands.alignment import find_head, report
from bistream.config import RuntimeConfig
from tests.voice.conftest import VOICE_DIR


def test_the_guided_head_is_found(tmp_path: Path) -> None:
    sizes = read_config(VOICE_DIR).language_model
    score = find_head(RuntimeConfig(model_dir=str(VOICE_DIR), device="cpu"))
    assert score.follows and score.head == sizes.text_position_head, score
    assert report(score, tmp_path / ALIGNMENT_FILE).startswith(f"layer {score.head[0]}, head {score.head[1]} follows the text")
    assert read_head(tmp_path, sizes) == score.head
