"""``bistream doctor --align`` on random weights. ``tests/voice/test_alignment.py`` has the shipped voice."""

from __future__ import annotations

from pathlib import Path

import pytest

from bistream.checkpoints.alignment import read_head
from bistream.checkpoints.reader import read_config
from bistream.commands import alignment, doctor
from bistream.errors import InvalidInputError
from bistream.text2token.head_scores import HeadScore


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random weights speak until they are cut."""
    monkeypatch.setattr(alignment, "SENTENCES", ("The river.",))


@pytest.mark.parametrize("family", ["tiny_model_dir", "tiny_cosyvoice3_dir"])
def test_no_head_of_random_weights_follows(
    family: str, request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model_dir, out = request.getfixturevalue(family), tmp_path / "alignment.json"
    assert doctor.main([str(model_dir), "--align", "--device", "cpu", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("no head follows the text (the best, layer ") and "estimated from the pace of the voice" in said
    assert out.read_text(encoding="utf-8") == '{"text_position_head": null}\n'
    assert read_head(tmp_path, read_config(model_dir).language_model) is None


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="choose another --out"):
        alignment.report(HeadScore((0, 0), 0.0, 0.0, 0.0), tmp_path)


def test_a_family_without_blocks(tiny_spark_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main([str(tiny_spark_dir), "--align", "--device", "cpu"]) == 1
    assert "--align is for CosyVoice" in capsys.readouterr().err
