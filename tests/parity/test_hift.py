"""The vocoder network against the reference's outputs; tolerances are those of ``tests/golden/README.md``."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bistream.checkpoints.reader import check_state_dict
from bistream.mel2wav.hift import HiFT, SourceStart
from bistream.mel2wav.weights import canonical_keys, expected_shapes, fold_weight_norm
from tests.formats import SAMPLES_PER_MEL_FRAME
from tests.parity import golden

CONFIG = golden.checkpoint_config().vocoder


@pytest.fixture(scope="module")
def hift() -> HiFT:
    network = HiFT(CONFIG)
    network.load_state_dict(fold_weight_norm(golden.tensors("hift_weights")))
    return network.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def case() -> dict[str, Tensor]:
    return golden.tensors("hift_inference")


def whole(num_frames: int) -> SourceStart:
    """One call over everything, as upstream does: phase from zero, constant at both ends."""
    phase = torch.zeros(1, CONFIG.nb_harmonics + 1, dtype=torch.float64)
    return SourceStart(phase, torch.tensor([0]), starts=torch.tensor([True]), frames=torch.tensor([num_frames]))


def source_of(hift: HiFT, f0: Tensor, noise: Tensor | None = None) -> Tensor:
    num_frames = f0.shape[1]
    merged = torch.zeros(1, num_frames * SAMPLES_PER_MEL_FRAME) if noise is None else hift.m_source.merge_noise(noise)
    source: Tensor = hift.m_source(f0, merged, whole(num_frames))[0]
    return source


def decode(hift: HiFT, mel: Tensor, source: Tensor) -> Tensor:
    return hift.decode(mel, source, torch.tensor([mel.shape[2]]))


def assert_close(found: Tensor, expected: Tensor, worst: float, mean: float | None = None) -> None:
    assert found.shape == expected.shape
    error = (found - expected).abs()
    assert error.max() <= worst, error.max()
    if mean is not None:
        assert error.mean() <= mean, error.mean()


def test_keys_and_shapes_are_those_of_the_file() -> None:
    state = golden.tensors("hift_weights")
    check_state_dict("hift.pt", canonical_keys(state), expected_shapes(CONFIG))


def test_f0(hift: HiFT, case: dict[str, Tensor]) -> None:
    assert_close(hift.f0(case["mel"]), case["f0"], 1e-3)


def test_source_from_given_f0(hift: HiFT, case: dict[str, Tensor]) -> None:
    assert_close(source_of(hift, case["given_f0"]), case["source_from_given_f0"][:, 0], 5e-3, mean=2e-4)


@pytest.mark.parametrize(("name", "with_noise"), [("zero_noise", False), ("given_noise", True)])
def test_source_and_audio(hift: HiFT, case: dict[str, Tensor], name: str, with_noise: bool) -> None:
    source = source_of(hift, hift.f0(case["mel"]), case["noise"] if with_noise else None)
    assert_close(source, case[f"source_{name}"][:, 0], 5e-3, mean=2e-4)
    assert_close(decode(hift, case["mel"], source), case[f"audio_{name}"], 5e-3)


def test_cached_source_replaces_the_beginning(hift: HiFT, case: dict[str, Tensor]) -> None:
    cache = case["cache_source"][:, 0]
    source = source_of(hift, hift.f0(case["mel"]))
    source = torch.cat([cache, source[:, cache.shape[1] :]], dim=1)
    assert_close(source, case["source_cached"][:, 0], 5e-3, mean=2e-4)
    assert_close(decode(hift, case["mel"], source), case["audio_cached"], 5e-3)


def test_decoder_alone(hift: HiFT, case: dict[str, Tensor]) -> None:
    num_samples = case["mel"].shape[2] * SAMPLES_PER_MEL_FRAME
    cache = case["cache_source"][:, 0]
    source = cache.repeat(1, -(-num_samples // cache.shape[1]))[:, :num_samples]
    assert_close(decode(hift, case["mel"], source), case["decode_only_audio"], 2e-4)


def test_a_single_frame(hift: HiFT, case: dict[str, Tensor]) -> None:
    expected = case["audio_T1"]
    mel = case["mel"][:, :, : expected.shape[1] // SAMPLES_PER_MEL_FRAME]
    assert_close(decode(hift, mel, source_of(hift, hift.f0(mel))), expected, 5e-3)
