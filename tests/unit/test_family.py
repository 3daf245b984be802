"""Which family a model directory is: by its yaml and the class that it names, without one by the speech tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from bistream.checkpoints.files import family_of, family_of_names
from bistream.checkpoints.listing import missing_files
from bistream.errors import CheckpointError
from bistream.families.cosyvoice2 import COSYVOICE2
from bistream.families.cosyvoice3 import COSYVOICE3
from bistream.families.family import Family
from bistream.families.registry import FAMILIES

QWEN2, COSYVOICE3_LM = "llm: !new:cosyvoice.llm.llm.Qwen2LM\n", "llm: !new:cosyvoice.llm.llm.CosyVoice3LM\n"


@pytest.mark.parametrize(
    ("files", "family"),
    [
        ({"cosyvoice2.yaml": QWEN2}, COSYVOICE2),
        ({"cosyvoice.yaml": QWEN2}, COSYVOICE2),
        ({"cosyvoice3.yaml": COSYVOICE3_LM}, COSYVOICE3),
        ({"cosyvoice3.yaml": ""}, COSYVOICE3),
        ({"cosyvoice3.yaml": COSYVOICE3_LM, "speech_tokenizer_v2.onnx": ""}, COSYVOICE3),
        ({"speech_tokenizer_v3.onnx": ""}, COSYVOICE3),
        ({"llm.pt": ""}, COSYVOICE2),
    ],
)
def test_the_family_of_a_directory(tmp_path: Path, files: dict[str, str], family: Family) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    assert family_of(tmp_path) is family


def test_no_directory_is_cosyvoice2() -> None:
    """What is missing is said by whoever reads it."""
    assert family_of("") is family_of("/there/is/none") is COSYVOICE2


@pytest.mark.parametrize(
    ("name", "content", "found"), [("cosyvoice3.yaml", QWEN2, "CosyVoice2"), ("cosyvoice2.yaml", COSYVOICE3_LM, "CosyVoice3")]
)
def test_a_yaml_under_the_other_name_is_refused(tmp_path: Path, name: str, content: str, found: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError, match=f"holds {found} \\({name} names its language model"):
        family_of(tmp_path)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_listing_is_whole_with_the_files_of_its_family(family: Family) -> None:
    paths = {names[0] for names in family.required_files}
    assert family_of_names(paths) is family and missing_files(paths) == []
    for path in paths - {family.yaml_names[0]}:
        assert missing_files(paths - {path}) == [path]
