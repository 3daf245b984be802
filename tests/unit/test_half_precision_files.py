"""A model directory whose files are in half precision loads, and computes what its rounded weights compute in float32."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import Tensor

from bistream.checkpoints.reader import read_config
from bistream.config import RuntimeConfig
from bistream.families.cosyvoice2 import COSYVOICE2
from bistream.mel2wav.weights import load_hift
from bistream.text2token.weights import load_weights
from bistream.token2mel.weights import load_network
from bistream.voice.made_with import SPEAKER_ENCODER_FILE
from bistream.voice.speaker_encoder import SpeakerEncoder
from bistream.voice.speech_tokenizer import SpeechTokenizer
from tests.unit.voice.graph_forms import in_half_precision, wholly_in_half_precision
from tests.unit.voice.voices import noise, on_cpu

SPEECH_TOKENIZER_FILE = COSYVOICE2.speech_tokenizer_file

CPU = torch.device("cpu")
PT_FILES = ("llm.pt", "flow.pt", "hift.pt")


def rounded(path: Path, kind: torch.dtype) -> dict[str, Tensor]:
    state: dict[str, Tensor] = torch.load(path, weights_only=True)
    return {key: tensor.half().to(kind) if tensor.is_floating_point() else tensor for key, tensor in state.items()}


def directory_of(tiny_model_dir: Path, folder: Path, kind: torch.dtype) -> Path:
    """The weights rounded to half precision, stored as ``kind``."""
    shutil.copytree(tiny_model_dir, folder)
    for name in PT_FILES:
        torch.save(rounded(folder / name, kind), folder / name)
    return folder


def parameters(model_dir: Path) -> Iterator[Tensor]:
    config = read_config(model_dir)
    weights = load_weights(model_dir, config.language_model, CPU, torch.float32)
    yield from (weights.embedding, weights.final_norm, weights.head_weight, weights.head_bias)
    for layer in weights.layers:
        yield from vars(layer).values()
    yield from load_network(model_dir, config.flow, CPU, torch.float32).parameters()
    yield from load_hift(model_dir, config.vocoder, CPU).parameters()


def test_tensor_files(tiny_model_dir: Path, tmp_path: Path) -> None:
    half, single = (directory_of(tiny_model_dir, tmp_path / str(kind), kind) for kind in (torch.float16, torch.float32))
    assert (half / "llm.pt").stat().st_size < 0.6 * (single / "llm.pt").stat().st_size
    pairs = list(zip(parameters(half), parameters(single), strict=True))
    assert len(pairs) > 100
    assert all(ours.dtype == torch.float32 and torch.equal(ours, expected) for ours, expected in pairs)


def test_speech_tokenizer(tiny_model_dir: Path, tmp_path: Path) -> None:
    """Half precision to store, float32 to compute: both programs, the same codes."""
    model = in_half_precision(onnx.load(str(tiny_model_dir / SPEECH_TOKENIZER_FILE)), random.Random(0))
    onnx.save(model, str(tmp_path / SPEECH_TOKENIZER_FILE))
    settings = {
        name: RuntimeConfig(model_dir=str(tmp_path), device="cpu", num_threads=1, speech_tokenizer=name) for name in ("onnx", "torch")
    }
    found, expected = (SpeechTokenizer.from_config(config).tokens(noise(16_000)) for config in settings.values())
    np.testing.assert_array_equal(found, expected)


def test_speaker_encoder(tiny_model_dir: Path, tmp_path: Path) -> None:
    """A file that also takes and gives half precision."""
    shutil.copytree(tiny_model_dir, tmp_path / "model")
    path = tmp_path / "model" / SPEAKER_ENCODER_FILE
    onnx.save(wholly_in_half_precision(onnx.load(str(path))), str(path))
    exact = SpeakerEncoder.from_config(on_cpu(tiny_model_dir)).embedding(noise(16_000))
    found = SpeakerEncoder.from_config(on_cpu(tmp_path / "model")).embedding(noise(16_000))
    assert found.dtype == np.float32
    assert 0 < np.linalg.norm(found - exact) < 0.02 * np.linalg.norm(exact)
