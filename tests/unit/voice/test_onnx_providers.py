"""Which execution provider runs the ONNX files, what is said about it, and where TensorRT's engines are kept. No GPU takes part."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime
import pytest

from bistream.config import RuntimeConfig
from bistream.errors import CheckpointError, ConfigError
from bistream.families.cosyvoice2 import COSYVOICE2
from bistream.store import fingerprint
from bistream.voice import onnx_session
from bistream.voice.made_with import SPEAKER_ENCODER_FILE
from bistream.voice.onnx_providers import CPU, CUDA, TENSORRT, OnnxSettings, engine_folder, provider_order
from bistream.voice.onnx_session import OnnxModel
from bistream.voice.speaker_encoder import RANGES as SPEAKER_RANGES
from bistream.voice.speech_tokenizer import RANGES as TOKENIZER_RANGES

SPEECH_TOKENIZER_FILE = COSYVOICE2.speech_tokenizer_file


@pytest.mark.parametrize(
    ("device", "providers", "engine_dir", "order"),
    [
        ("auto", "auto", "", [CUDA, CPU]),
        ("auto", "auto", "/e", [TENSORRT, CUDA, CPU]),
        ("cpu", "auto", "/e", [CPU]),
        ("cuda:3", "auto", "", [CUDA]),  # who names a GPU wants no CPU
        ("cuda", "auto", "/e", [TENSORRT, CUDA]),
        ("auto", "tensorrt", "", [TENSORRT]),
        ("cuda", "tensorrt,cpu", "", [TENSORRT, CPU]),
        ("cpu", "tensorrt,cuda,cpu", "", [CPU]),
    ],
)
def test_order(device: str, providers: str, engine_dir: str, order: list[str]) -> None:
    settings = OnnxSettings(device, providers=providers, engine_dir=engine_dir)
    assert provider_order(settings) == order


def test_settings_that_do_not_fit() -> None:
    with pytest.raises(ConfigError, match="'onnx_providers' is 'cuda', but 'device' is 'cpu'"):
        provider_order(OnnxSettings("cpu", providers="cuda"))
    for device in ("gpu", "cuda:", "cuda:x", "cpu:1", ""):
        with pytest.raises(ConfigError, match="auto, cpu, cuda or cuda:N"):
            provider_order(OnnxSettings(device))
    for providers in ("", "gpu", "cuda,cuda", "auto,cpu", "cuda, cpu"):
        with pytest.raises(ConfigError, match="'onnx_providers' is .*auto, or to some of tensorrt, cuda and cpu"):
            RuntimeConfig(onnx_providers=providers)


def test_engines_for_something_else_are_in_another_folder(
    tmp_path: Path, tiny_model_dir: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    path = tiny_model_dir / SPEAKER_ENCODER_FILE
    first = engine_folder(str(tmp_path), path, SPEAKER_RANGES)
    assert first.parent == tmp_path and (first / fingerprint.FILE_NAME).is_file()
    assert "TensorRT builds engines of campplus.onnx" in caplog.messages[-1]
    caplog.clear()
    assert engine_folder(str(tmp_path), path, SPEAKER_RANGES) == first and not caplog.messages
    monkeypatch.setattr("bistream.voice.onnx_providers.gpus", lambda: ("NVIDIA H200 9.0",))
    assert engine_folder(str(tmp_path), path, SPEAKER_RANGES) != first
    assert "those there are for something else (GPU none, here NVIDIA H200 9.0)" in caplog.messages[-1]
    with pytest.raises(ConfigError, match="'onnx_engine_dir' is .* nothing can be written"):
        engine_folder(str(path), path, SPEAKER_RANGES)


class Runtime:
    """onnxruntime on a host with these providers, of which only ``works`` start. Opens every session on the CPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, available: Sequence[str], works: Sequence[str], raises: bool = False) -> None:
        self._open = onnxruntime.InferenceSession
        self._works, self._raises = works, raises
        monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: list(available))
        monkeypatch.setattr(onnxruntime, "InferenceSession", self.open)
        monkeypatch.setattr(onnx_session, "_load_cuda_libraries", lambda: None)

    def open(self, path: str, options: Any, providers: list[Any]) -> Any:
        session = self._open(path, options, providers=[CPU])
        names = [name if isinstance(name, str) else name[0] for name in providers]
        if names[0] not in (*self._works, CPU):
            if self._raises:
                raise RuntimeError("no CUDA-capable device")
            names = [CPU]
        return SimpleNamespace(get_inputs=session.get_inputs, get_providers=lambda: names, run=session.run)


ALL = (TENSORRT, CUDA, CPU)


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize(
    ("available", "works", "provider", "said"),
    [
        ((CPU,), (), CPU, "campplus.onnx runs on the CPU (TensorRT is not in this onnxruntime; CUDA is not in this onnxruntime)"),
        (ALL, (TENSORRT, CUDA), TENSORRT, "campplus.onnx runs on TensorRT"),
        (ALL, (CUDA,), CUDA, "campplus.onnx runs on CUDA (TensorRT does not start here)"),
        (ALL, (), CPU, "campplus.onnx runs on the CPU (TensorRT does not start here; CUDA does not start here)"),
    ],
)
def test_the_first_that_starts_is_used_and_said(
    tmp_path: Path,
    tiny_model_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    available: Sequence[str],
    works: Sequence[str],
    provider: str,
    said: str,
    raises: bool,
) -> None:
    caplog.set_level(logging.INFO)
    Runtime(monkeypatch, available, works, raises)
    model = OnnxModel(tiny_model_dir, SPEAKER_ENCODER_FILE, SPEAKER_RANGES, OnnxSettings(engine_dir=str(tmp_path)))
    assert model.provider == provider
    assert [message for message in caplog.messages if "runs on" in message] == [said]


def test_a_gpu_that_was_named_is_not_replaced_by_the_cpu(tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for available in ((CPU,), (CUDA, CPU)):
        Runtime(monkeypatch, available, ())
        with pytest.raises(ConfigError, match=r"'cuda' and 'auto', but for campplus\.onnx CUDA .*; install onnxruntime-gpu"):
            OnnxModel(tiny_model_dir, SPEAKER_ENCODER_FILE, SPEAKER_RANGES, OnnxSettings("cuda"))


def test_a_damaged_file_is_named_on_a_gpu_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / SPEECH_TOKENIZER_FILE).write_bytes(b"damaged")
    Runtime(monkeypatch, (CUDA, CPU), (CUDA,))
    with pytest.raises(CheckpointError, match=f"{SPEECH_TOKENIZER_FILE} could not be loaded"):
        OnnxModel(tmp_path, SPEECH_TOKENIZER_FILE, TOKENIZER_RANGES, OnnxSettings("cuda"))
