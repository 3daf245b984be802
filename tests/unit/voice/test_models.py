"""Speech tokenizer and speaker encoder on the tiny checkpoint: conventions, damaged files, devices."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from bistream.errors import CheckpointError
from bistream.families.cosyvoice2 import COSYVOICE2
from bistream.types import FloatArray
from bistream.voice.features import log_mel_16k
from bistream.voice.made_with import SPEAKER_ENCODER_FILE
from bistream.voice.s3_network import S3Network
from bistream.voice.s3_weights import state_dict_from_onnx
from bistream.voice.speaker_encoder import SpeakerEncoder
from bistream.voice.speech_tokenizer import SpeechTokenizer
from scripts._onnx_models import speaker_encoder_model
from tests.unit.voice.voices import noise, on_cpu

SPEECH_TOKENIZER_FILE = COSYVOICE2.speech_tokenizer_file

LOADERS: dict[str, type[SpeechTokenizer] | type[SpeakerEncoder]] = {
    SPEECH_TOKENIZER_FILE: SpeechTokenizer,
    SPEAKER_ENCODER_FILE: SpeakerEncoder,
}


@pytest.mark.parametrize("samples", [8000, 8001, 16_159, 16_160, 33_333])
def test_tokens(tiny_model_dir: Path, samples: int) -> None:
    tokenizer = SpeechTokenizer.from_config(on_cpu(tiny_model_dir))
    tokens = tokenizer.tokens(noise(samples))
    assert tokens.dtype == np.int32
    assert tokens.shape == (-(-(samples // 160) // 4),)
    assert tokens.min() >= 0
    assert tokens.max() < 6561
    assert np.unique(tokens).size > tokens.size // 2


def test_onnx_file_equals_the_network(tiny_model_dir: Path) -> None:
    network = S3Network.from_state_dict(state_dict_from_onnx(tiny_model_dir / SPEECH_TOKENIZER_FILE))
    log_mel = torch.from_numpy(log_mel_16k(noise(40_000)))[None]
    length = torch.tensor([log_mel.shape[2]])
    digits = network.digits(network.hidden(log_mel, length)[0])[0]
    clear = ((digits.abs() - 0.5).abs() > 1e-3).all(dim=-1).numpy()
    assert clear.mean() > 0.9
    tokens = SpeechTokenizer.from_config(on_cpu(tiny_model_dir)).tokens(noise(40_000))
    np.testing.assert_array_equal(tokens[clear], network.tokens(log_mel, length)[0][0].numpy()[clear])


def test_embedding(tiny_model_dir: Path) -> None:
    encoder = SpeakerEncoder.from_config(on_cpu(tiny_model_dir))
    fade_in: FloatArray = np.linspace(0, 1, 20_000, dtype=np.float32)
    first, second = encoder.embedding(noise(16_000)), encoder.embedding(noise(20_000) * fade_in)
    assert first.dtype == np.float32
    assert first.shape == second.shape == (192,)
    assert np.isfinite(first).all()
    assert np.abs(first - second).max() > 1e-3
    np.testing.assert_array_equal(first, encoder.embedding(noise(16_000)))


@pytest.mark.parametrize("file_name", LOADERS)
def test_missing_file(tmp_path: Path, file_name: str) -> None:
    with pytest.raises(CheckpointError, match=file_name):
        LOADERS[file_name].from_config(on_cpu(tmp_path))


@pytest.mark.parametrize("file_name", LOADERS)
@pytest.mark.parametrize("content", [b"", b"not an onnx file", None])
def test_damaged_file(tiny_model_dir: Path, tmp_path: Path, file_name: str, content: bytes | None) -> None:
    whole = (tiny_model_dir / file_name).read_bytes()
    (tmp_path / file_name).write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(CheckpointError, match=file_name):
        LOADERS[file_name].from_config(on_cpu(tmp_path))


def test_embedding_of_another_size(tiny_model_dir: Path, tmp_path: Path) -> None:
    for name in ("cosyvoice2.yaml", f"{COSYVOICE2.text_directory}/config.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(tiny_model_dir / name, tmp_path / name)
    weights = [np.ones((4, 80, 5), dtype=np.float32)]
    onnx.save(speaker_encoder_model(weights, np.ones((8, 100), dtype=np.float32)), str(tmp_path / SPEAKER_ENCODER_FILE))
    with pytest.raises(CheckpointError, match="100 values, not 192"):
        SpeakerEncoder.from_config(on_cpu(tmp_path)).embedding(noise(16_000))


def test_swapped_files(tiny_model_dir: Path, tmp_path: Path) -> None:
    shutil.copy(tiny_model_dir / SPEECH_TOKENIZER_FILE, tmp_path / SPEAKER_ENCODER_FILE)
    with pytest.raises(CheckpointError, match=f"{SPEAKER_ENCODER_FILE} has 2 inputs, not 1"):
        SpeakerEncoder.from_config(on_cpu(tmp_path))
