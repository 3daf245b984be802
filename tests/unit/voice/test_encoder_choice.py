"""Which program runs the speaker encoder, what the log says about it, and that PyTorch serves no file whose embeddings it does not give."""

from __future__ import annotations

import logging
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from bistream.config import RuntimeConfig
from bistream.errors import CheckpointError
from bistream.families.cosyvoice2 import COSYVOICE2
from bistream.families.cosyvoice3 import COSYVOICE3
from bistream.types import FloatArray
from bistream.voice import torch_speakers
from bistream.voice.build import prompt_mel
from bistream.voice.features import fbank_16k
from bistream.voice.made_with import SPEAKER_ENCODER_FILE
from bistream.voice.speaker_encoder import OnnxSpeakers, SpeakerEncoder
from bistream.voice.torch_speakers import TorchSpeakers
from tests.unit.voice.pretended_gpu import pretend_gpu
from tests.unit.voice.voices import noise

TRAINED = Path(__file__).resolve().parents[3] / "assets" / "voice"  # its speaker encoder is a network of its own


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpu(monkeypatch, torch_speakers)


def config(model_dir: Path, program: str = "auto", device: str = "auto") -> RuntimeConfig:
    return RuntimeConfig(model_dir=str(model_dir), device=device, num_threads=1, speaker_encoder=program)


def with_another_gate(model_dir: Path, folder: Path) -> Path:
    """The file with all layers in place, but one gate is a hyperbolic tangent."""
    shutil.copytree(model_dir, folder / "model")
    path = folder / "model" / SPEAKER_ENCODER_FILE
    model = onnx.load(str(path))
    next(node for node in model.graph.node if node.op_type == "Sigmoid").op_type = "Tanh"
    onnx.save(model, str(path))
    return folder / "model"


def trained(model_dir: Path, folder: Path) -> Path:
    return TRAINED


def test_auto_is_pytorch_on_a_gpu(tiny_model_dir: Path, gpu: None, caplog: pytest.LogCaptureFixture) -> None:
    yielded: list[bool] = []
    with caplog.at_level(logging.INFO):
        encoder = SpeakerEncoder.from_config(config(tiny_model_dir), lambda: yielded.append(True))
    assert isinstance(encoder._network, TorchSpeakers) and not yielded
    assert f"{SPEAKER_ENCODER_FILE} runs in PyTorch on cuda (speaker_encoder is auto)" in caplog.text


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (trained, "is not built like the released speaker encoder"),
        (with_another_gate, r"gives other embeddings in PyTorch than in onnxruntime \(cosine -?\d\.\d+\)"),
    ],
)
def test_a_file_with_another_network(
    tiny_model_dir: Path, tmp_path: Path, gpu: None, caplog: pytest.LogCaptureFixture, change: Callable[[Path, Path], Path], reason: str
) -> None:
    """``auto`` leaves it to onnxruntime and says why, in one line; ``torch`` refuses it."""
    model_dir = change(tiny_model_dir, tmp_path)
    with caplog.at_level(logging.WARNING):
        encoder = SpeakerEncoder.from_config(config(model_dir, device="cpu"))
    (warning,) = caplog.messages
    assert re.search(f"^onnxruntime runs {SPEAKER_ENCODER_FILE}: {SPEAKER_ENCODER_FILE} {reason}", warning)
    assert isinstance(encoder._network, OnnxSpeakers)
    assert encoder.embedding(noise(8000)).shape == (192,)
    with pytest.raises(CheckpointError, match=reason):
        SpeakerEncoder.from_config(config(model_dir, "torch"))


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_auto_is_onnxruntime_without_a_gpu(tiny_model_dir: Path, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    yielded: list[bool] = []
    encoder = SpeakerEncoder.from_config(config(tiny_model_dir, device=device), lambda: yielded.append(True))
    assert isinstance(encoder._network, OnnxSpeakers) and yielded == [True]


def test_a_host_without_a_gpu_does_not_load_torch(tiny_model_dir: Path) -> None:
    """It would cost the process seconds and 200 MB."""
    code = (
        "import sys; from bistream.config import RuntimeConfig; from bistream.voice.speaker_encoder import SpeakerEncoder; "
        "SpeakerEncoder.from_config(RuntimeConfig(model_dir=sys.argv[1], device='cpu')); print('torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code, str(tiny_model_dir)], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "False"


@pytest.mark.parametrize("program", ["onnx", "torch"])
@pytest.mark.parametrize("family", ["cosyvoice2", "cosyvoice3"])
def test_embedding_and_mel_of_each_recording(tiny_model_dir: Path, tiny_cosyvoice3_dir: Path, program: str, family: str) -> None:
    model_dir = {COSYVOICE2.name: tiny_model_dir, COSYVOICE3.name: tiny_cosyvoice3_dir}[family]
    high_hz = {COSYVOICE2.name: COSYVOICE2, COSYVOICE3.name: COSYVOICE3}[family].mel_high_hz
    encoder = SpeakerEncoder.from_config(config(model_dir, program, "cpu"))
    plain = OnnxSpeakers(SpeakerEncoder.from_config(config(model_dir, "onnx", "cpu"))._network._model)  # type: ignore[attr-defined]
    waveforms = [noise(count) for count in (8000, 30_123, 8000, 16_001, 47_999)]
    for waveform, found in zip(waveforms, encoder.features_of(waveforms), strict=True):
        frames = fbank_16k(waveform)
        expected: FloatArray = plain.vectors([frames - frames.mean(axis=0)])[0]
        np.testing.assert_allclose(found.embedding, expected, rtol=0, atol=1e-5 * float(np.abs(expected).max()))
        np.testing.assert_allclose(found.mel, prompt_mel(waveform, high_hz), rtol=0, atol=1e-3)
