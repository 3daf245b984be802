"""The speech tokenizer against the reference implementation: our network, and the ONNX file made from its weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from bistream.voice.features import log_mel_16k
from bistream.voice.s3_network import S3Network
from bistream.voice.s3_weights import state_dict_from_onnx
from bistream.voice.speech_tokenizer import SpeechTokenizer
from scripts._onnx_models import speech_tokenizer_model
from tests.parity.golden import SETS, GoldenSet
from tests.unit.voice.voices import on_cpu

HIDDEN_TOLERANCE = 1e-3
DIGIT_TOLERANCE = 1e-4
AMBIGUOUS = 1e-3  # distance of a digit from a rounding threshold
CLIPS = ("long", "short")


@pytest.fixture(scope="module", params=SETS)
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(SETS[request.param])


@dataclass(frozen=True)
class Golden:
    of: GoldenSet

    def __call__(self, name: str) -> torch.Tensor:
        return self.of.tensors("s3tokenizer")[name]

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        return dict(self.of.tensors("s3tokenizer_weights"))

    @property
    def network(self) -> S3Network:
        return S3Network.from_state_dict(self.weights, self.of.family.tokenizer_norm_eps)

    def log_mel(self, clip: str) -> torch.Tensor:
        return self(f"logmel_{clip}")

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        lengths = [self.log_mel(clip).shape[1] for clip in CLIPS]
        mel = torch.zeros(len(CLIPS), self.log_mel("long").shape[0], max(lengths))
        for row, clip in enumerate(CLIPS):
            mel[row, :, : lengths[row]] = self.log_mel(clip)
        assert lengths == self("batch_lengths").tolist()
        return mel, self("batch_lengths")


def assert_codes_equal(codes: torch.Tensor, expected: torch.Tensor, digits: torch.Tensor) -> None:
    """Equal except where a digit [..., 8] lies at a rounding threshold."""
    clear = ((digits.abs() - 0.5).abs() > AMBIGUOUS).all(dim=-1)
    assert clear.float().mean() > 0.9
    assert torch.equal(codes[clear], expected[clear])


def test_sizes_are_those_of_the_set(golden: Golden) -> None:
    sizes = golden.of.read_json("config.json")["s3tokenizer"]
    config = golden.network.config
    assert (config.mel_bins, config.width, config.layers) == (sizes["n_mels"], sizes["n_audio_state"], sizes["n_audio_layer"])
    assert config.heads == sizes["n_audio_head"]


def test_log_mel_of_the_waveform(golden: Golden) -> None:
    wave = golden("wave_short")[0].numpy()
    np.testing.assert_allclose(log_mel_16k(wave), golden.log_mel("short").numpy(), atol=1e-3, rtol=0)


def test_batched_hidden_digits_and_codes(golden: Golden) -> None:
    mel, lengths = golden.batch()
    hidden, token_lengths = golden.network.hidden(mel, lengths)
    assert torch.equal(token_lengths, golden("batch_code_lengths"))
    digits = golden.network.digits(hidden)
    codes, _ = golden.network.tokens(mel, lengths)
    for row, length in enumerate(token_lengths.tolist()):
        valid = (row, slice(0, length))
        torch.testing.assert_close(hidden[valid], golden("batch_hidden")[valid], atol=HIDDEN_TOLERANCE, rtol=0)
        torch.testing.assert_close(digits[valid], golden("batch_prequant")[valid], atol=DIGIT_TOLERANCE, rtol=0)
        assert_codes_equal(codes[valid], golden("batch_codes")[valid], golden("batch_prequant")[valid])


@pytest.mark.parametrize("clip", CLIPS)
def test_single_clip(golden: Golden, clip: str) -> None:
    mel = golden.log_mel(clip)[None]
    length = torch.tensor([mel.shape[2]])
    codes, token_lengths = golden.network.tokens(mel, length)
    expected = golden(f"single_{clip}_codes")
    assert token_lengths.tolist() == [expected.shape[1]] == [codes.shape[1]]
    assert_codes_equal(codes, expected, golden.network.digits(golden.network.hidden(mel, length)[0]))


@pytest.fixture(scope="module")
def onnx_dir(golden: Golden, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("onnx")
    weights = {key: tensor.numpy() for key, tensor in golden.weights.items()}
    name = golden.of.family.speech_tokenizer_file
    onnx.save(speech_tokenizer_model(weights, name), str(directory / name))
    return directory


def test_onnx_file_gives_the_reference_codes(golden: Golden, onnx_dir: Path) -> None:
    tokenizer = SpeechTokenizer.from_config(on_cpu(onnx_dir))
    codes = torch.from_numpy(tokenizer.tokens(golden("wave_short")[0].numpy()))
    digits = golden.network.digits(
        golden.network.hidden(golden.log_mel("short")[None], torch.tensor([golden.log_mel("short").shape[1]]))[0]
    )
    assert_codes_equal(codes, golden("single_short_codes")[0], digits[0])


def test_onnx_file_batched(golden: Golden, onnx_dir: Path) -> None:
    session = onnxruntime.InferenceSession(str(onnx_dir / golden.of.family.speech_tokenizer_file), providers=["CPUExecutionProvider"])
    mel, lengths = golden.batch()
    codes = torch.from_numpy(session.run(None, {"feats": mel.numpy(), "feats_length": lengths.int().numpy()})[0])
    for row, length in enumerate(golden("batch_code_lengths").tolist()):
        valid = (row, slice(0, length))
        assert_codes_equal(codes[valid], golden("batch_codes")[valid], golden("batch_prequant")[valid])


def test_network_reads_its_weights_back_from_the_onnx_file(golden: Golden, onnx_dir: Path) -> None:
    state = state_dict_from_onnx(onnx_dir / golden.of.family.speech_tokenizer_file)
    assert state.keys() == golden.weights.keys()
    for key, tensor in golden.weights.items():
        assert torch.equal(state[key], tensor), key
