"""The random model directory: complete, in the released format, the same for the same seed, and of the released sizes."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import onnxruntime
import pytest
import torch

from bistream.checkpoints.model_dir import check_model_dir
from bistream.checkpoints.reader import check_state_dict, load_state_dict, read_config
from bistream.families.cosyvoice3 import COSYVOICE3
from bistream.mel2wav import weights as vocoder_weights
from bistream.text.tokenizer import TextTokenizer
from bistream.text2token import weights as language_model_weights
from bistream.token2mel import weights as flow_weights
from bistream.voice.s3_network import S3Config
from bistream.voice.s3_network import expected_shapes as speech_tokenizer_shapes
from bistream.voice.spk2info import read_spk2info
from scripts._checkpoint_text import checkpoint_yaml, qwen2_config_json
from scripts.make_checkpoint import FAMILY_SIZES, FULL, SIZES, TINY, CheckpointSize, make_checkpoint

ROOT = Path(__file__).parents[2]
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


def test_full_cosyvoice3_has_the_released_keys_and_parameters() -> None:
    """Of the language model and the speech tokenizer; flow and vocoder: tests of their own."""
    size = FAMILY_SIZES["cosyvoice3"]["full"]
    table = language_model_weights.expected_shapes(size.checkpoint.language_model)
    assert len(table) == 293
    assert sum(map(math.prod, table.values())) - math.prod(table[TIED_HEAD[1]]) == 506_148_480
    assert (table["speech_embedding.weight"], table["llm_decoder.weight"]) == ((6761, 896), (6761, 896))
    assert {"llm_embedding.weight", "llm_decoder.bias"}.isdisjoint(table)
    assert size.speech_tokenizer == S3Config(layers=12, attention_norm_eps=1e-5)


def test_a_cosyvoice3_directory_is_whole(tmp_path: Path) -> None:
    folder = tmp_path / "cosyvoice3"
    make_checkpoint(folder, "tiny", family="cosyvoice3")
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == {name.replace("cosyvoice2", "cosyvoice3").replace("_v2", "_v3") for name in FILES} - {"spk2info.pt"}
    assert check_model_dir(folder) == FAMILY_SIZES["cosyvoice3"]["tiny"].checkpoint
    tokenizer = TextTokenizer.from_model_dir(folder)
    assert tokenizer.size == 1024 and tokenizer.spoken_tokens == COSYVOICE3.spoken_tokens


@pytest.mark.parametrize("steps", [10, 6])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("family", FAMILY_SIZES)
def test_text_files_hold_the_sizes(tmp_path: Path, family: str, size: str, steps: int) -> None:
    config = FAMILY_SIZES[family][size].checkpoint
    config = replace(config, flow=replace(config.flow, n_timesteps=steps))
    (tmp_path / f"{family}.yaml").write_text(checkpoint_yaml(config), encoding="utf-8")
    (tmp_path / "CosyVoice-BlankEN").mkdir()
    (tmp_path / "CosyVoice-BlankEN" / "config.json").write_text(qwen2_config_json(config.language_model), encoding="utf-8")
    assert read_config(tmp_path) == config


def test_only_a_tiny_yaml_has_the_extra_key() -> None:
    assert "num_up_blocks" in checkpoint_yaml(TINY.checkpoint)
    assert "num_up_blocks" not in checkpoint_yaml(FULL.checkpoint) and "n_timesteps" not in checkpoint_yaml(FULL.checkpoint)


def test_the_directory_holds_all_files_and_no_others(tiny_model_dir: Path) -> None:
    assert {str(path.relative_to(tiny_model_dir)) for path in tiny_model_dir.rglob("*") if path.is_file()} == FILES


@pytest.mark.parametrize("file_name", ["llm.pt", "flow.pt", "hift.pt"])
def test_state_dicts_fit_strictly(tiny_model_dir: Path, file_name: str) -> None:
    state = load_state_dict(tiny_model_dir / file_name)
    check_state_dict(file_name, state, shape_tables(TINY)[file_name])
    assert {tensor.dtype for tensor in state.values()} == {torch.float32}
    assert all(tensor.isfinite().all() for tensor in state.values())


def test_text_head_shares_its_storage(tiny_model_dir: Path) -> None:
    state = load_state_dict(tiny_model_dir / "llm.pt")
    embedding, head = (state[key] for key in TIED_HEAD)
    assert embedding.data_ptr() == head.data_ptr()
    body = sum(tensor.numel() * 4 for key, tensor in state.items() if key != TIED_HEAD[1])
    assert (tiny_model_dir / "llm.pt").stat().st_size < 1.1 * body


def test_text_embedding_covers_the_tokenizer(tiny_model_dir: Path) -> None:
    tokenizer = TextTokenizer.from_model_dir(tiny_model_dir)
    assert tokenizer.size <= TINY.checkpoint.language_model.text_vocab_size
    assert json.loads((tiny_model_dir / "CosyVoice-BlankEN" / "config.json").read_text(encoding="utf-8"))["vocab_size"] >= tokenizer.size


@pytest.mark.parametrize(
    ("file_name", "inputs", "outputs"),
    [
        ("campplus.onnx", {"input": ("tensor(float)", ["batch", "frames", 80])}, [["batch", 192]]),
        (
            "speech_tokenizer_v2.onnx",
            {"feats": ("tensor(float)", ["batch", 128, "frames"]), "feats_length": ("tensor(int32)", ["batch"])},
            [["batch", "tokens"]],
        ),
    ],
)
def test_onnx_conventions(tiny_model_dir: Path, file_name: str, inputs: dict[str, object], outputs: list[object]) -> None:
    session = onnxruntime.InferenceSession(str(tiny_model_dir / file_name), providers=["CPUExecutionProvider"])
    assert {item.name: (item.type, item.shape) for item in session.get_inputs()} == inputs
    assert [item.shape for item in session.get_outputs()] == outputs


def test_speaker_of_the_triton_runtime(tiny_model_dir: Path) -> None:
    entry = torch.load(tiny_model_dir / "spk2info.pt", weights_only=True)["001"]
    assert {key: tuple(value.shape) for key, value in entry.items() if key != "prompt_text"} == {
        "speech_token": (1, 50),
        "speech_feat": (1, 100, 80),
        "embedding": (1, 192),
    }
    voice = read_spk2info(tiny_model_dir / "spk2info.pt", lambda ids: "")["001"]
    assert 0 <= voice.speech_tokens.min() < voice.speech_tokens.max() < 6561


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


def test_command_line(tmp_path: Path) -> None:
    command = [sys.executable, "scripts/make_checkpoint.py", "--size", "tiny", str(tmp_path / "made" / "tiny")]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["tiny"]
    with pytest.raises(FileExistsError, match="exists already"):
        make_checkpoint(tmp_path / "made" / "tiny")


def test_a_failure_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("scripts.make_checkpoint.flow_state", fail)
    with pytest.raises(OSError, match="disk full"):
        make_checkpoint(tmp_path / "tiny")
    assert list(tmp_path.iterdir()) == []
