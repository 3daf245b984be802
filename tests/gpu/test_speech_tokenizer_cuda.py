"""The speech tokenizer on CUDA: onnxruntime's codes but for digits at a decision, the same in any batch, and one wait for the device."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray

from bistream.config import RuntimeConfig
from bistream.families.cosyvoice2 import COSYVOICE2
from bistream.types import FloatArray
from bistream.voice.features import log_mel_16k
from bistream.voice.s3_network import S3Config, S3Network
from bistream.voice.s3_weights import state_dict_from_onnx
from bistream.voice.speech_tokenizer import SpeechTokenizer
from bistream.voice.torch_tokenizers import TorchTokens
from tests.unit.voice.graph_forms import model_of, random_state
from tests.unit.voice.voices import noise

SPEECH_TOKENIZER_FILE = COSYVOICE2.speech_tokenizer_file

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

# the GPU host's torch is not the pinned version: ignore its warnings
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

AMBIGUOUS = 1e-3  # distance of a digit from where it would round to another one
SAMPLES = (8000, 16_001, 80_000, 80_000, 48_123, 240_000)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers of full width: the released network's products at a third of its size."""
    folder = tmp_path_factory.mktemp("tokenizer")
    onnx.save(model_of(random_state(S3Config(layers=2))), str(folder / SPEECH_TOKENIZER_FILE))
    return folder


def tokenizer(model_dir: Path, program: str, device: str) -> SpeechTokenizer:
    return SpeechTokenizer.from_config(RuntimeConfig(model_dir=str(model_dir), device=device, speech_tokenizer=program))


@cache
def network(path: Path) -> S3Network:
    return S3Network.from_state_dict(state_dict_from_onnx(path))


def clear(model_dir: Path, waveform: FloatArray) -> NDArray[np.bool_]:
    """Tokens that no rounding can change."""
    mel = torch.from_numpy(log_mel_16k(waveform))[None]
    ours = network(model_dir / SPEECH_TOKENIZER_FILE)
    digits = ours.digits(ours.hidden(mel, torch.tensor([mel.shape[2]]))[0])[0]
    found: NDArray[np.bool_] = ((digits.abs() - 0.5).abs() > AMBIGUOUS).all(dim=-1).numpy()
    return found


def test_codes_are_those_of_onnxruntime(model_dir: Path) -> None:
    on_gpu, on_cpu = tokenizer(model_dir, "auto", "cuda"), tokenizer(model_dir, "onnx", "cpu")
    assert isinstance(on_gpu._network, TorchTokens)
    waveforms = [noise(count) for count in SAMPLES]
    for waveform, found, expected in zip(waveforms, on_gpu.tokens_of(waveforms), map(on_cpu.tokens, waveforms), strict=True):
        unambiguous = clear(model_dir, waveform)
        assert unambiguous.mean() > 0.9
        np.testing.assert_array_equal(found[unambiguous], expected[unambiguous])


def test_codes_are_those_of_each_alone(model_dir: Path) -> None:
    on_gpu = tokenizer(model_dir, "torch", "cuda")
    waveforms = [noise(count) for count in SAMPLES]
    for waveform, found in zip(waveforms, on_gpu.tokens_of(waveforms), strict=True):
        unambiguous = clear(model_dir, waveform)
        np.testing.assert_array_equal(found[unambiguous], on_gpu.tokens(waveform)[unambiguous])


def test_the_device_is_waited_for_once(model_dir: Path) -> None:
    """In the copy of the codes; torch reports every operation that waits."""
    ours = network(model_dir / SPEECH_TOKENIZER_FILE).to("cuda")
    mels, lengths = torch.randn(3, 128, 200, device="cuda"), torch.tensor([200, 150, 31], device="cuda")
    ours.tokens(mels, lengths)
    torch.cuda.set_sync_debug_mode("error")
    try:
        codes = ours.tokens(mels, lengths)[0]
    finally:
        torch.cuda.set_sync_debug_mode("default")
        network.cache_clear()  # it is on the GPU now
    assert codes.shape == (3, 50)
