"""CosyVoice3's vocoder against the reference's outputs; tolerances are those of the set's README."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch import Tensor

from bistream.config import RuntimeConfig
from bistream.mel2wav.causal.layers import LayerMemory
from bistream.mel2wav.causal.network import CausalHiFT, Signal
from bistream.mel2wav.causal.stage import CausalVocoderStage
from bistream.mel2wav.causal.weights import build_hift, expected_shapes
from bistream.mel2wav.stage import VocoderHop
from bistream.mel2wav.weights import canonical_keys
from tests.formats import SAMPLES_PER_MEL_FRAME
from tests.parity import golden3

CONFIG = golden3.vocoder_config()
PREFIXES = sorted(
    int(name.rpartition("prefix")[2]) for name in golden3.tensors("hift_inference") if re.fullmatch(r"audio_rule_noise_prefix\d+", name)
)


@pytest.fixture(scope="module")
def hift() -> CausalHiFT:
    return build_hift(golden3.tensors("hift_weights"), CONFIG, torch.device("cpu"))


@pytest.fixture(scope="module")
def case() -> dict[str, Tensor]:
    return golden3.tensors("hift_inference")


def rule_noise(first: int, samples: int) -> Tensor:
    """The set's rule for the noise of sample i and harmonic h, [samples, H]."""
    harmonics = CONFIG.nb_harmonics + 1
    index = harmonics * np.arange(first, first + samples, dtype=np.uint64)[:, None] + np.arange(harmonics, dtype=np.uint64)
    words = (index * np.uint64(2654435761)) % np.uint64(2**32) // np.uint64(2**8)
    return torch.from_numpy(words.astype(np.float32) / np.float32(2**24))


def make_stage(hift: CausalHiFT, kind: str) -> CausalVocoderStage:
    noise = hift.m_source.merge_noise(rule_noise(0, 60 * SAMPLES_PER_MEL_FRAME)) if kind == "rule" else torch.zeros(1)
    return CausalVocoderStage(RuntimeConfig(device="cpu"), CONFIG, noise, hift)


def assert_close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


def audio_of(stage: CausalVocoderStage, mel: Tensor) -> Tensor:
    return torch.from_numpy(stage.synthesize(mel[0], seed=0))[None]


def f0_of(hift: CausalHiFT, mel: Tensor, frames: int) -> Tensor:
    """mel: zeros behind its end where the call is final."""
    padded = torch.nn.functional.pad(mel, (0, frames + CONFIG.f0_look_right - mel.shape[2]))
    f0: Tensor = hift.f0_predictor(padded, LayerMemory(None, torch.tensor([frames])))
    return f0


def source_of(hift: CausalHiFT, f0: Tensor, kind: str) -> Tensor:
    samples = f0.shape[1] * SAMPLES_PER_MEL_FRAME
    noise = hift.m_source.merge_noise(rule_noise(0, samples))[None] if kind == "rule" else torch.zeros(1, samples)
    source: Tensor = hift.m_source(f0.float(), noise, torch.zeros(1, CONFIG.nb_harmonics + 1, dtype=torch.float64))[0]
    return source


def test_keys_and_shapes_are_those_of_the_file() -> None:
    found = {key: tuple(tensor.shape) for key, tensor in canonical_keys(golden3.tensors("hift_weights")).items()}
    assert expected_shapes(CONFIG) == found


def test_the_rule_of_the_noise(case: dict[str, Tensor]) -> None:
    assert torch.equal(rule_noise(0, 16)[None], case["rule_noise_first_16"])
    assert torch.equal(rule_noise(100_000, 16)[None], case["rule_noise_at_100000"])


def test_f0(hift: CausalHiFT, case: dict[str, Tensor]) -> None:
    mel, short = case["mel"], case["f0_float64_prefix20"]
    assert_close(f0_of(hift, mel, mel.shape[2]), case["f0_float64"], 1e-9)
    frames = short.shape[1]
    assert_close(f0_of(hift, mel[:, :, : frames + CONFIG.f0_look_right], frames), short, 1e-9)


@pytest.mark.parametrize("kind", ["zero", "rule"])
def test_source(hift: CausalHiFT, case: dict[str, Tensor], kind: str) -> None:
    assert_close(source_of(hift, case["given_f0"], kind), case[f"source_from_given_f0_{kind}_noise"][:, 0], 1e-3)
    assert_close(source_of(hift, case["f0_float64"], kind), case[f"source_{kind}_noise"][:, 0], 1e-3)


@pytest.mark.parametrize("kind", ["zero", "rule"])
def test_audio(hift: CausalHiFT, case: dict[str, Tensor], kind: str) -> None:
    assert_close(audio_of(make_stage(hift, kind), case["mel"]), case[f"audio_{kind}_noise"], 1e-3)


def test_a_single_frame(hift: CausalHiFT, case: dict[str, Tensor]) -> None:
    assert_close(audio_of(make_stage(hift, "zero"), case["mel"][:, :, :1]), case["audio_T1"], 1e-3)


@pytest.mark.parametrize("frames", PREFIXES)
def test_a_prefix_gives_the_references_audio_and_four_frames_more(hift: CausalHiFT, case: dict[str, Tensor], frames: int) -> None:
    stage = make_stage(hift, "rule")
    found = torch.from_numpy(stage.hop([VocoderHop(stage.open(0), case["mel"][0, :, :frames], finalize=False)])[0])[None]
    expected = case[f"audio_rule_noise_prefix{frames}"]
    assert expected.shape[1] == SAMPLES_PER_MEL_FRAME * (frames - 8)
    assert found.shape[1] == SAMPLES_PER_MEL_FRAME * (frames - 4) - 4
    assert_close(found[:, : expected.shape[1]], expected, 1e-3)
    assert_close(found, case["audio_rule_noise"][:, : found.shape[1]], 1e-3)


def test_decoder_alone(hift: CausalHiFT, case: dict[str, Tensor]) -> None:
    mel, source = case["mel"], case["decode_source"][:, 0]
    frames, before, after = mel.shape[2], hift.source_samples_before, hift.source_samples_after
    reflected = torch.nn.functional.pad(source[:, None], (before, after), mode="reflect")[:, 0]
    one, yes = torch.tensor([frames]), torch.tensor([True])
    padded = torch.nn.functional.pad(mel, (0, CONFIG.conv_pre_look_right))
    audio = hift.decode(padded, reflected, Signal(one, yes, yes), LayerMemory(None, one))
    audio = audio[:, hift.first_sample : hift.first_sample + frames * SAMPLES_PER_MEL_FRAME]
    assert_close(audio, case["decode_only_audio"], 1e-5)


def test_decoder_alone_on_a_prefix(hift: CausalHiFT, case: dict[str, Tensor]) -> None:
    """The reference withholds more than it must; its samples are those of the call over everything."""
    expected = case["decode_only_audio_not_final"]
    mel, source = case["mel"], case["decode_source"][:, 0]
    frames = mel.shape[2] - CONFIG.conv_pre_look_right
    window = torch.nn.functional.pad(source[:, None], (hift.source_samples_before, 0), mode="reflect")[:, 0]
    window = window[:, : hift.source_samples_before + frames * SAMPLES_PER_MEL_FRAME + hift.source_samples_after]
    one = torch.tensor([frames])
    audio = hift.decode(mel, window, Signal(one, torch.tensor([True]), torch.tensor([False])), LayerMemory(None, one))
    audio = audio[:, hift.first_sample : hift.first_sample + expected.shape[1]]
    assert_close(audio, expected, 1e-5)
