"""The random model directory: complete, in the released format, the same for the same seed, and of the released sizes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from bistream.checkpoints.model_dir import check_model_dir
from bistream.checkpoints.reader import load_state_dict, read_config
from bistream.families.cosyvoice3 import COSYVOICE3
from bistream.mel2wav import weights as vocoder_weights
from bistream.text.tokenizer import TextTokenizer
from bistream.text2token import weights as language_model_weights
from bistream.text2token.one_table import weights as one_table_weights
from bistream.token2mel import weights as flow_weights
from bistream.voice.s3_network import expected_shapes as speech_tokenizer_shapes
from scripts.make_checkpoint import FAMILY_SIZES, FULL, ONE_TABLE_SIZES, CheckpointSize, make_checkpoint

FILES = {
    "cosyvoice2.yaml",
    "llm.pt",
    "flow.pt",
    "hift.pt",
    "campplus.onnx",
    "speech_tokenizer_v2.onnx",
    "spk2info.pt",
    "CosyVoice-BlankEN/config.json",
    "CosyVoice-BlankEN/vocab.json",
    "CosyVoice-BlankEN/merges.txt",
    "CosyVoice-BlankEN/tokenizer_config.json",
}
TIED_HEAD = ("llm.model.model.embed_tokens.weight", "llm.model.lm_head.weight")


def shape_tables(size: CheckpointSize) -> dict[str, dict[str, tuple[int, ...]]]:
    config = size.checkpoint
    return {
        "llm.pt": language_model_weights.expected_shapes(config.language_model),
        "flow.pt": flow_weights.expected_shapes(config.flow),
        "hift.pt": vocoder_weights.expected_shapes(config.vocoder),
    }


def test_full_has_the_released_keys_and_parameters() -> None:
    tables = shape_tables(FULL)
    parameters = {name: sum(map(math.prod, table.values())) for name, table in tables.items()}
    parameters["llm.pt"] -= math.prod(tables["llm.pt"][TIED_HEAD[1]])  # the head is the embedding
    assert {name: len(table) for name, table in tables.items()} == {"llm.pt": 295, "flow.pt": 1121, "hift.pt": 328}
    assert parameters == {"llm.pt": 505_803_812, "flow.pt": 112_549_360, "hift.pt": 20_821_295}
    assert sum(map(math.prod, speech_tokenizer_shapes(FULL.speech_tokenizer).values())) == 123_714_568


def test_a_cosyvoice3_directory_is_whole(tiny_cosyvoice3_dir: Path) -> None:
    folder = tiny_cosyvoice3_dir
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == {name.replace("cosyvoice2", "cosyvoice3").replace("_v2", "_v3") for name in FILES} - {"spk2info.pt"}
    assert check_model_dir(folder) == FAMILY_SIZES["cosyvoice3"]["tiny"].checkpoint
    tokenizer = TextTokenizer.from_model_dir(folder)
    assert tokenizer.size == 1024 and tokenizer.spoken_tokens == COSYVOICE3.spoken_tokens


def test_the_language_model_of_a_spark_directory_is_whole(tiny_spark_dir: Path) -> None:
    folder = tiny_spark_dir
    files = {path.name for path in (folder / "LLM").iterdir()}
    assert files == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "added_tokens.json",
        "vocab.json",
        "merges.txt",
        "special_tokens_map.json",
    }
    sizes = ONE_TABLE_SIZES["spark"]["tiny"].language_model
    assert read_config(folder).language_model == sizes
    added = json.loads((folder / "LLM/added_tokens.json").read_text(encoding="utf-8"))
    assert list(added) == sorted(sizes.tokens.names) and sorted(added.values()) == list(range(sizes.tokens.first, sizes.tokens.end))


def test_full_spark_has_the_released_sizes() -> None:
    sizes = ONE_TABLE_SIZES["spark"]["full"].language_model
    shapes = one_table_weights.expected_shapes(sizes)
    assert len(shapes) == 290 and sum(map(math.prod, shapes.values())) == 506_634_112
    assert (sizes.tokens.stop, sizes.tokens.end, len(sizes.tokens.names)) == (151_645, 165_158, 13_515)


def test_the_directory_holds_all_files_and_no_others(tiny_model_dir: Path) -> None:
    assert {str(path.relative_to(tiny_model_dir)) for path in tiny_model_dir.rglob("*") if path.is_file()} == FILES


def test_same_seed_same_bytes_other_seed_other_tensors(tiny_model_dir: Path, tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "tiny", "tiny", seed=0)  # files of torch.save contain no time or path
    for name in FILES:
        assert (tmp_path / "tiny" / name).read_bytes() == (tiny_model_dir / name).read_bytes(), name
    make_checkpoint(tmp_path / "other", "tiny", seed=1)
    for name in ("llm.pt", "flow.pt", "hift.pt"):
        first, other = load_state_dict(tiny_model_dir / name), load_state_dict(tmp_path / "other" / name)
        assert all(
            not torch.equal(first[key], other[key]) for key in first if first[key].count_nonzero() and first[key].std(correction=0) > 0
        )


def test_a_failure_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("scripts.make_checkpoint.flow_state", fail)
    with pytest.raises(OSError, match="disk full"):
        make_checkpoint(tmp_path / "tiny")
    assert list(tmp_path.iterdir()) == []
