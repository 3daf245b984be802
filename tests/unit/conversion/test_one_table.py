"""The merged checkpoint of a one-table model: what the torch engine computes with, under the ids of TensorRT-LLM."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bistream.checkpoints.one_table import RELEASED, OneTableConfig
from bistream.checkpoints.reader import read_config
from bistream.conversion.merged import EMBEDDING, HEAD, architecture_of, load_tensors
from bistream.conversion.vocabulary import MergedVocabulary
from bistream.errors import CheckpointError
from bistream.families.registry import FAMILIES
from bistream.families.spark import SPARK
from bistream.text2token.engine import TokenSpace
from bistream.text2token.one_table.weights import build_weights, load_state
from bistream.text2token.tensorrt_llm import merged_ids
from bistream.text2token.tensorrt_llm.merged_ids import HEAD_BIAS, read_merged_ids
from scripts.convert_checkpoint import main


@pytest.fixture(scope="module")
def merged_dir(tiny_spark_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("merged") / "llm"
    assert main(["huggingface", "--model-dir", str(tiny_spark_dir), "--out", str(out), "--dtype", "float32"]) == 0
    return out


def test_every_id_has_the_rows_of_the_torch_engine(merged_dir: Path, tiny_spark_dir: Path) -> None:
    """And no other id can be sampled."""
    sizes = read_config(tiny_spark_dir).language_model
    assert isinstance(sizes, OneTableConfig)
    space, merged = TokenSpace.of(sizes), load_tensors(merged_dir / "model.safetensors")
    ours = build_weights(load_state(tiny_spark_dir, SPARK.text_directory), sizes, torch.device("cpu"), torch.float32)
    ids = read_merged_ids(merged_dir, space)
    assert ids.speech_offset == sizes.table_size and merged[EMBEDDING].shape[0] == ids.vocab_size
    used = [*range(sizes.table_size), *range(space.speech_offset, space.size)]
    assert torch.equal(merged[EMBEDDING][ids.to_merged(used)], ours.embedding[used])
    sampled = ids.to_merged(range(space.speech_offset, space.speech_offset + space.num_scores))
    assert torch.equal(merged[HEAD][sampled], ours.head_weight)
    assert merged[HEAD_BIAS].isfinite().nonzero().flatten().tolist() == sampled and not merged[HEAD_BIAS][sampled].any()
    assert torch.equal(merged["model.norm.weight"], ours.final_norm)
    config = json.loads((merged_dir / "config.json").read_text())
    assert (config["architectures"], config["tie_word_embeddings"]) == (["SparkTTSForCausalLM"], False)
    assert ids.from_merged(config["eos_token_id"]) == space.eos


def test_tensorrt_llm_is_told_the_class_of_every_family() -> None:
    """By the names that ``config.json`` has; the module itself needs TensorRT-LLM."""
    source = (Path(merged_ids.__file__).parent / "speech_head.py").read_text(encoding="utf-8")
    assert all(f'"{architecture_of(family)}"' in source for family in FAMILIES)


def test_the_sizes_of_the_released_model() -> None:
    vocabulary = MergedVocabulary(166_000, RELEASED.num_semantic, SPARK.rows)
    assert (vocabulary.head_rows, vocabulary.eos, vocabulary.size) == (8193, 174_192, 174_208)


def test_the_same_is_not_made_again(merged_dir: Path, tiny_spark_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["huggingface", "--model-dir", str(tiny_spark_dir), "--out", str(merged_dir)]
    assert main([*given, "--dtype", "float32"]) == 0
    assert capsys.readouterr().out.startswith("have ")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["huggingface", "--dtype", "float16"], "become NaN; set it to auto, bfloat16 or float32."),
        (["llm_pt", "--merged", "{merged}"], "Spark-TTS has no llm.pt; train LLM/ itself, which transformers load."),
    ],
)
def test_what_it_has_not_is_one_sentence(
    words: list[str], sentence: str, merged_dir: Path, tiny_spark_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [word.format(merged=merged_dir) for word in words]
    assert main([*given, "--model-dir", str(tiny_spark_dir), "--out", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert sentence in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir()), "nothing is left"


def test_the_released_folder_itself_is_refused(tiny_spark_dir: Path) -> None:
    """All of its rows could be sampled."""
    with pytest.raises(CheckpointError, match="ties its head to its embedding"):
        read_merged_ids(tiny_spark_dir / SPARK.text_directory, TokenSpace.of(read_config(tiny_spark_dir).language_model))
