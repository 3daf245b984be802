"""What may lie in a model directory in place of CosyVoice2: each is told in one sentence, before anything is loaded."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bistream.checkpoints.files import check_whole
from bistream.checkpoints.model_dir import check_model_dir
from bistream.checkpoints.reader import load_state_dict, read_config
from bistream.config import RuntimeConfig
from bistream.errors import CheckpointError
from bistream.gpu.device import resolve_device
from bistream.mel2wav.weights import load_hift
from bistream.text2token.weights import load_weights
from bistream.token2mel.weights import load_network
from scripts.make_model_repo import main

POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{64 * '4'}\nsize 2023316821\n"
COSYVOICE = "llm: !new:cosyvoice.llm.llm.TransformerLM\n    text_encoder_input_size: 512\n"


@pytest.fixture
def model_dir(tiny_model_dir: Path, tmp_path: Path) -> Path:
    """A copy that may be spoiled."""
    return Path(shutil.copytree(tiny_model_dir, tmp_path / "model"))


def replace_in_yaml(model_dir: Path, old: str, new: str) -> None:
    path = model_dir / "cosyvoice2.yaml"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def cut(model_dir: Path, name: str, share: float = 0.5) -> None:
    content = (model_dir / name).read_bytes()
    (model_dir / name).write_bytes(content[: int(len(content) * share)])


def make_cosyvoice(model_dir: Path) -> None:
    (model_dir / "cosyvoice2.yaml").unlink()
    (model_dir / "cosyvoice.yaml").write_text(COSYVOICE, encoding="utf-8")


def make_cosyvoice3(model_dir: Path) -> None:
    (model_dir / "cosyvoice2.yaml").rename(model_dir / "cosyvoice3.yaml")


def move_inside(model_dir: Path) -> None:
    inside = model_dir / "CosyVoice2-0.5B"
    inside.mkdir()
    for path in list(model_dir.iterdir()):
        if path != inside:
            path.rename(inside / path.name)


MISTAKES: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "CosyVoice": (make_cosyvoice, ("holds CosyVoice (", "TransformerLM", "name a whole directory of CosyVoice2 or CosyVoice3")),
    "CosyVoice under the other name": (
        lambda folder: (folder / "cosyvoice2.yaml").write_text(COSYVOICE, encoding="utf-8"),
        ("holds CosyVoice (", "TransformerLM"),
    ),
    "CosyVoice2 under the other name": (make_cosyvoice3, ("holds CosyVoice2 (cosyvoice3.yaml names its language model Qwen2LM",)),
    "CosyVoice3 under the other name": (
        lambda folder: replace_in_yaml(folder, "llm.Qwen2LM", "llm.CosyVoice3LM"),
        ("holds CosyVoice3 (", "CosyVoice3LM"),
    ),
    "Git LFS": (lambda folder: (folder / "llm.pt").write_text(POINTER), ("llm.pt is a Git LFS pointer", "git lfs pull")),
    "Git LFS, yaml": (lambda folder: (folder / "cosyvoice2.yaml").write_text(POINTER), ("cosyvoice2.yaml is a Git LFS pointer",)),
    "half llm.pt": (lambda folder: cut(folder, "llm.pt"), ("llm.pt", "cut off", "download it again")),
    "half flow.pt": (lambda folder: cut(folder, "flow.pt", 0.99), ("flow.pt", "cut off")),
    "half tokenizer": (lambda folder: cut(folder, "speech_tokenizer_v2.onnx"), ("speech_tokenizer_v2.onnx", "cut off")),
    "half encoder": (lambda folder: cut(folder, "campplus.onnx", 0.999), ("campplus.onnx", "cut off")),
    "half vocabulary": (lambda folder: cut(folder, "CosyVoice-BlankEN/vocab.json"), ("vocab.json could not be read",)),
    "empty file": (lambda folder: (folder / "hift.pt").write_bytes(b""), ("hift.pt is empty",)),
    "missing file": (lambda folder: (folder / "hift.pt").unlink(), ("has no hift.pt", "complete the directory")),
    "folder above": (move_inside, ("has no cosyvoice2.yaml", "model/CosyVoice2-0.5B")),
    "other chunks": (lambda folder: replace_in_yaml(folder, "chunk_size: 25", "chunk_size: 50"), ("chunk_size 50", "only 25")),
    "other token rate": (
        lambda folder: replace_in_yaml(folder, "token_frame_rate: 25", "token_frame_rate: 50"),
        ("token_frame_rate 50", "only 25"),
    ),
    "another sample rate": (
        lambda folder: replace_in_yaml(folder, "sample_rate: 24000", "sample_rate: 22050"),
        ("sample_rate 22050", "only 24000"),
    ),
    "other mel frames": (
        lambda folder: replace_in_yaml(folder, "token_mel_ratio: 2", "token_mel_ratio: 4"),
        ("token_mel_ratio 4", "only 2"),
    ),
    "other codebook": (lambda folder: replace_in_yaml(folder, "speech_token_size: 6561", "speech_token_size: 4096"), ("4096", "6561")),
}


SPARK_WEIGHTS = ("LLM/model.safetensors", "BiCodec/model.safetensors", "wav2vec2-large-xlsr-53/pytorch_model.bin")


@pytest.mark.parametrize(("name", "words"), [*((name, "cut off") for name in SPARK_WEIGHTS), ("LLM/tokenizer.json", "could not be read")])
def test_so_it_does_with_half_a_file_of_the_family_without_a_flow(
    name: str, words: str, tiny_spark_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model_dir = Path(shutil.copytree(tiny_spark_dir, tmp_path / "model"))
    cut(model_dir, name)
    assert main(["--model-dir", str(model_dir), "--out", str(tmp_path / "repository")]) == 1
    error = capsys.readouterr().err
    assert name in error and words in error and error.count("\n") == 1


@pytest.mark.parametrize("mistake", MISTAKES)
def test_stage_2_refuses_it_in_one_sentence(mistake: str, model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoil, words = MISTAKES[mistake]
    spoil(model_dir)
    assert main(["--model-dir", str(model_dir), "--out", str(tmp_path / "repository")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("make_model_repo.py: ") and error.count("\n") == 1
    assert all(word in error for word in words), error
    assert not (tmp_path / "repository").exists()


def test_the_folder_above_it_names_it(tiny_spark_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(tiny_spark_dir, tmp_path / "models" / "spark")
    assert main(["--model-dir", str(tmp_path / "models"), "--out", str(tmp_path / "repository")]) == 1
    assert f"name the directory inside it: {tmp_path / 'models' / 'spark'}\n" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "words"), [("absent", "does not exist"), ("empty", "is empty"), ("file", "is a file")])
def test_a_wrong_name_is_refused(name: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    assert main(["--model-dir", str(tmp_path / name), "--out", str(tmp_path / "repository")]) == 1
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("mistake", ["CosyVoice", "CosyVoice3 under the other name", "other chunks", "other token rate", "other codebook"])
def test_a_model_that_is_loaded_all_the_same_says_so_too(mistake: str, model_dir: Path) -> None:
    spoil, words = MISTAKES[mistake]
    spoil(model_dir)
    with pytest.raises(CheckpointError) as caught:
        read_config(model_dir)
    assert all(word in str(caught.value) for word in words)


def test_a_whole_directory_passes_with_its_sizes(tiny_model_dir: Path) -> None:
    assert check_model_dir(tiny_model_dir) == read_config(tiny_model_dir)


@given(st.data())
def test_a_file_that_was_cut_anywhere_is_noticed(
    tiny_model_dir: Path, tiny_spark_dir: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Of an ONNX file, whose format marks no end, a cut between two fields is not; there are few of those."""
    paths = [*(tiny_model_dir / name for name in ("hift.pt", "campplus.onnx")), *(tiny_spark_dir / name for name in SPARK_WEIGHTS)]
    source = data.draw(st.sampled_from(paths))
    check_whole(source.parent, source.name)
    name, content = source.name, source.read_bytes()
    length = data.draw(st.integers(0, len(content) - 1))
    path = tmp_path_factory.mktemp("cut") / name
    path.write_bytes(content[:length])
    if name == "campplus.onnx" and length in field_ends(content):
        return
    with pytest.raises(CheckpointError, match=name):
        check_whole(path.parent, name)


def field_ends(content: bytes) -> set[int]:
    """Where the top fields of a protobuf message end."""
    ends, place = set(), 0

    def number() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = content[place]
            place += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while place < len(content):
        kind, length = number() & 7, number()
        place += length if kind == 2 else 0
        ends.add(place)
    return ends


@pytest.mark.parametrize("is_old", [False, True], ids=["zip", "PyTorch 1.5"])
def test_checkpoints_of_a_training_run_load(model_dir: Path, is_old: bool) -> None:
    """With ``epoch`` and ``step`` in each, and a vocoder whose discriminator was saved with it."""
    for name in ("llm.pt", "flow.pt", "hift.pt"):
        state = {key: value.clone() for key, value in load_state_dict(model_dir / name).items()}  # the file is mapped
        if name == "hift.pt":
            state = {f"generator.{key}": value for key, value in state.items()} | {"discriminator.x.weight": torch.zeros(3)}
        torch.save({**state, "epoch": 7, "step": 41_000}, model_dir / name, _use_new_zipfile_serialization=not is_old)
    sizes, cpu = check_model_dir(model_dir), resolve_device(RuntimeConfig(device="cpu").device)
    assert load_weights(model_dir, sizes.language_model, cpu, torch.float32).layers
    assert load_network(model_dir, sizes.flow, cpu, torch.float32)
    assert load_hift(model_dir, sizes.vocoder, cpu)
