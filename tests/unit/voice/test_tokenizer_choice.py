"""Which program runs the speech tokenizer, what the log says about it, and that PyTorch serves no file whose codes it does not give."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from bistream.config import RuntimeConfig
from bistream.errors import CheckpointError
from bistream.families.cosyvoice2 import COSYVOICE2
from bistream.store import findings
from bistream.voice import speech_tokenizer, torch_tokenizers
from bistream.voice.s3_network import ROTARY_BASE
from bistream.voice.speech_tokenizer import OnnxNetwork, SpeechTokenizer
from bistream.voice.torch_tokenizers import TorchTokens
from tests.unit.voice.pretended_gpu import pretend_gpu

SPEECH_TOKENIZER_FILE = COSYVOICE2.speech_tokenizer_file


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpu(monkeypatch, torch_tokenizers)


def config(model_dir: Path, program: str = "auto", device: str = "auto") -> RuntimeConfig:
    return RuntimeConfig(model_dir=str(model_dir), device=device, num_threads=1, speech_tokenizer=program)


def network(tokenizer: SpeechTokenizer) -> object:
    return tokenizer._network


def with_other_positions(model_dir: Path, folder: Path) -> Path:
    """The file with all layers in place, but with other rotary positions."""
    model = onnx.load(str(model_dir / SPEECH_TOKENIZER_FILE))
    for node in model.graph.node:
        value = next((item.t for item in node.attribute if item.name == "value"), None)
        if value is not None and list(value.dims) == [64]:
            array = numpy_helper.to_array(value)
            assert np.isclose(array[1], ROTARY_BASE ** (-1 / 32))
            value.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array**2)))
    onnx.save(model, str(folder / SPEECH_TOKENIZER_FILE))
    return folder


def test_auto_is_pytorch_on_a_gpu(tiny_model_dir: Path, gpu: None, caplog: pytest.LogCaptureFixture) -> None:
    yielded: list[bool] = []
    with caplog.at_level(logging.INFO):
        tokenizer = SpeechTokenizer.from_config(config(tiny_model_dir), lambda: yielded.append(True))
    assert isinstance(network(tokenizer), TorchTokens) and not yielded
    assert f"{SPEECH_TOKENIZER_FILE} runs in PyTorch on cuda (speech_tokenizer is auto)" in caplog.text


@pytest.mark.usefixtures("gpu")
def test_the_comparison_with_onnxruntime_is_made_once(tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[None] = []
    check = speech_tokenizer.check_same_codes
    monkeypatch.setattr(speech_tokenizer, "check_same_codes", lambda *arguments: compared.append(check(*arguments)))
    for _ in range(2):
        SpeechTokenizer.from_config(config(tiny_model_dir))
    assert len(compared) == 2, "without a state folder, at every start"
    monkeypatch.setenv(findings.STATE_VARIABLE, str(tmp_path / "state"))
    for _ in range(2):
        SpeechTokenizer.from_config(config(tiny_model_dir))
    assert len(compared) == 3
    model_dir = with_other_positions(tiny_model_dir, tmp_path)
    for _ in range(2):
        with pytest.raises(CheckpointError):  # another file is compared, and what failed is not kept
            SpeechTokenizer.from_config(config(model_dir, "torch"))


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_auto_is_onnxruntime_without_a_gpu(tiny_model_dir: Path, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    yielded: list[bool] = []
    tokenizer = SpeechTokenizer.from_config(config(tiny_model_dir, device=device), lambda: yielded.append(True))
    assert isinstance(network(tokenizer), OnnxNetwork) and yielded == [True]


def test_pytorch_on_a_cpu_yields_the_cores_first(tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    load = torch_tokenizers.load

    def loading(chosen: RuntimeConfig, device: torch.device) -> TorchTokens:
        order.append("load")
        return load(chosen, device)

    monkeypatch.setattr(torch_tokenizers, "load", loading)
    SpeechTokenizer.from_config(config(tiny_model_dir, "torch", "cpu"), lambda: order.append("yield"))
    assert order == ["yield", "load"]
