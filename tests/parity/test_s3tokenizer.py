"""The speech tokenizer against the reference implementation: our network, and the ONNX file made from its weights."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from bistream.voice.features import log_mel_16k
from bistream.voice.s3_network import S3Network, state_dict_from_onnx
from bistream.voice.speech_tokenizer import SPEECH_TOKENIZER_FILE, SpeechTokenizer
from scripts._onnx_models import speech_tokenizer_model
from tests.parity.golden import read_json, tensors

HIDDEN_TOLERANCE = 1e-3
DIGIT_TOLERANCE = 1e-4
AMBIGUOUS = 1e-3  # distance of a digit from a rounding threshold
CLIPS = ("long", "short")


def golden(name: str) -> torch.Tensor:
    return tensors("s3tokenizer")[name]


@cache
def network() -> S3Network:
    return S3Network.from_state_dict(dict(tensors("s3tokenizer_weights")))


def log_mel(clip: str) -> torch.Tensor:
    return golden(f"logmel_{clip}")


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    lengths = [log_mel(clip).shape[1] for clip in CLIPS]
    mel = torch.zeros(len(CLIPS), log_mel("long").shape[0], max(lengths))
    for row, clip in enumerate(CLIPS):
        mel[row, :, : lengths[row]] = log_mel(clip)
    assert lengths == golden("batch_lengths").tolist()
    return mel, golden("batch_lengths")


def assert_codes_equal(codes: torch.Tensor, expected: torch.Tensor, digits: torch.Tensor) -> None:
    """Equal except where a digit [..., 8] lies at a rounding threshold."""
    clear = ((digits.abs() - 0.5).abs() > AMBIGUOUS).all(dim=-1)
    assert clear.float().mean() > 0.9
    assert torch.equal(codes[clear], expected[clear])


def test_sizes_are_those_of_the_set() -> None:
    sizes = read_json("config.json")["s3tokenizer"]
    config = network().config
    assert (config.mel_bins, config.width, config.layers) == (sizes["n_mels"], sizes["n_audio_state"], sizes["n_audio_layer"])
    assert config.heads == sizes["n_audio_head"]


def test_log_mel_of_the_waveform() -> None:
    wave = golden("wave_short")[0].numpy()
    np.testing.assert_allclose(log_mel_16k(wave), log_mel("short").numpy(), atol=1e-3, rtol=0)


def test_batched_hidden_digits_and_codes() -> None:
    mel, lengths = batch()
    hidden, token_lengths = network().hidden(mel, lengths)
    assert torch.equal(token_lengths, golden("batch_code_lengths"))
    digits = network().digits(hidden)
    codes, _ = network().tokens(mel, lengths)
    for row, length in enumerate(token_lengths.tolist()):
        valid = (row, slice(0, length))
        torch.testing.assert_close(hidden[valid], golden("batch_hidden")[valid], atol=HIDDEN_TOLERANCE, rtol=0)
        torch.testing.assert_close(digits[valid], golden("batch_prequant")[valid], atol=DIGIT_TOLERANCE, rtol=0)
        assert_codes_equal(codes[valid], golden("batch_codes")[valid], golden("batch_prequant")[valid])


@pytest.mark.parametrize("clip", CLIPS)
def test_single_clip(clip: str) -> None:
    mel = log_mel(clip)[None]
    length = torch.tensor([mel.shape[2]])
    codes, token_lengths = network().tokens(mel, length)
    expected = golden(f"single_{clip}_codes")
    assert token_lengths.tolist() == [expected.shape[1]] == [codes.shape[1]]
    assert_codes_equal(codes, expected, network().digits(network().hidden(mel, length)[0]))


@pytest.fixture(scope="module")
def onnx_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("onnx")
    weights = {key: tensor.numpy() for key, tensor in tensors("s3tokenizer_weights").items()}
    onnx.save(speech_tokenizer_model(weights), str(directory / SPEECH_TOKENIZER_FILE))
    return directory


def test_onnx_file_gives_the_reference_codes(onnx_dir: Path) -> None:
    tokenizer = SpeechTokenizer.from_model_dir(onnx_dir, device="cpu", num_threads=1)
    codes = torch.from_numpy(tokenizer.tokens(golden("wave_short")[0].numpy()))
    digits = network().digits(network().hidden(log_mel("short")[None], torch.tensor([log_mel("short").shape[1]]))[0])
    assert_codes_equal(codes, golden("single_short_codes")[0], digits[0])


def test_onnx_file_batched(onnx_dir: Path) -> None:
    session = onnxruntime.InferenceSession(str(onnx_dir / SPEECH_TOKENIZER_FILE), providers=["CPUExecutionProvider"])
    mel, lengths = batch()
    codes = torch.from_numpy(session.run(None, {"feats": mel.numpy(), "feats_length": lengths.int().numpy()})[0])
    for row, length in enumerate(golden("batch_code_lengths").tolist()):
        valid = (row, slice(0, length))
        assert_codes_equal(codes[valid], golden("batch_codes")[valid], golden("batch_prequant")[valid])


def test_network_reads_its_weights_back_from_the_onnx_file(onnx_dir: Path) -> None:
    state = state_dict_from_onnx(onnx_dir / SPEECH_TOKENIZER_FILE)
    assert state.keys() == tensors("s3tokenizer_weights").keys()
    for key, tensor in tensors("s3tokenizer_weights").items():
        assert torch.equal(state[key], tensor), key
