"""The causal vocoder: pieces of any size, in any batch, joined are one call over the whole mel."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bistream.checkpoints.config import CausalVocoderConfig, DitFlowConfig
from bistream.config import RuntimeConfig
from bistream.errors import CheckpointError
from bistream.mel2wav.causal.noise import NOISE_SECONDS, reference_noise
from bistream.mel2wav.causal.stage import CausalVocoderStage
from bistream.mel2wav.causal.state import CausalState
from bistream.mel2wav.causal.weights import build_hift, expected_shapes
from bistream.mel2wav.factory import make_vocoder
from bistream.mel2wav.stage import VocoderHop
from bistream.types import FloatArray
from tests.formats import SAMPLES_PER_MEL_FRAME
from tests.unit.mel2wav.speaking import Session, cuts_of_session, speak
from tests.unit.mel2wav.tiny import CAUSAL, CAUSAL_CHECKPOINT, random_state, voiced_mel, write_model

CPU = torch.device("cpu")
EXACT = 2e-6
"""Largest difference of audio (standard deviation about 0.1) that another cut may make: other orders of sums. Seen: 4e-7."""
LOOKAHEAD_FRAMES = 4


@functools.cache
def stage() -> CausalVocoderStage:
    hift = build_hift(random_state(CAUSAL), CAUSAL, CPU)
    noise = hift.m_source.merge_noise(torch.rand(20 * 24_000, 9, generator=torch.Generator().manual_seed(5)))
    return CausalVocoderStage(RuntimeConfig(device="cpu"), CAUSAL, noise, hift)


def stream(mel: Tensor, cuts: list[int]) -> list[FloatArray]:
    """Pieces of the given sizes, then the rest."""
    state, pieces, begin = stage().open(0), [], 0
    for size in cuts:
        pieces += stage().hop([VocoderHop(state, mel[:, begin : begin + size], finalize=False)])
        begin += size
    pieces += stage().hop([VocoderHop(state, mel[:, begin:], finalize=True)])
    state.close()
    return pieces


def at_once(mel: Tensor) -> FloatArray:
    return stage().hop([VocoderHop(stage().open(0), mel, finalize=True)])[0]


@settings(max_examples=4)
@given(cuts=st.lists(st.integers(0, 30), max_size=8), rest=st.integers(0, 12), seed=st.integers(0, 100))
def test_any_pieces_joined_are_one_call(cuts: list[int], rest: int, seed: int) -> None:
    frames = sum(cuts) + rest
    mel = voiced_mel(frames, seed)
    pieces = stream(mel, cuts)
    whole = at_once(mel)
    assert len(whole) == SAMPLES_PER_MEL_FRAME * frames
    assert np.abs(np.concatenate(pieces) - whole).max(initial=0) <= EXACT
    known = np.cumsum(cuts)
    due = SAMPLES_PER_MEL_FRAME * np.maximum(known - LOOKAHEAD_FRAMES, 0)
    given_out = np.cumsum([len(piece) for piece in pieces[:-1]])
    assert (given_out == np.where(due > 0, due - 4, 0)).all()


@settings(max_examples=3)
@given(sessions=st.lists(cuts_of_session, min_size=2, max_size=4))
def test_a_batch_equals_its_sessions_alone(sessions: list[Session]) -> None:
    """Sessions of other lengths, of which some begin and some end in the same call."""
    for seed, pieces in enumerate(speak(stage(), sessions)):
        whole = at_once(voiced_mel(sum(sessions[seed][0]), seed))
        assert np.abs(np.concatenate(pieces) - whole).max(initial=0) <= EXACT


@pytest.mark.parametrize("frame", [20, 33])
def test_the_lookahead_is_four_frames_and_three_samples(frame: int) -> None:
    """The first sample that depends on mel frame t is 480 t - 1923: one of the last that are withheld while t is unknown."""
    mel = voiced_mel(60)
    changed = mel.clone()
    changed[:, frame] += 1.0
    differs = np.flatnonzero(at_once(mel) != at_once(changed))
    assert 480 * frame - 1923 <= differs[0] < 480 * frame - 1920 + 480


def test_offline_in_pieces_is_one_call() -> None:
    mel = voiced_mel(180)
    assert np.abs(stage().synthesize(mel, seed=3) - at_once(mel)).max() <= EXACT
    assert stage().synthesize(mel[:, :0], 0).shape == (0,)
    assert len(stage().synthesize(mel, 0, speed=1.3)) == SAMPLES_PER_MEL_FRAME * int(180 / 1.3)


def test_nan_stays_with_its_session() -> None:
    mel = voiced_mel(40)
    broken = mel.clone()
    broken[:, 20] = torch.nan
    states = [stage().open(0), stage().open(0)]
    good, bad = stage().hop([VocoderHop(state, item, True) for state, item in zip(states, (mel, broken), strict=True)])
    assert np.abs(good - at_once(mel)).max() <= EXACT
    assert not np.isfinite(bad).all()


def test_state_does_not_grow_and_is_freed() -> None:
    state = stage().open(0)
    stage().hop([VocoderHop(state, voiced_mel(30), False)])
    size = numbers(state)
    for seed in range(3):
        stage().hop([VocoderHop(state, voiced_mel(30, seed), False)])
    assert numbers(state) == size
    state.close()
    state.close()
    assert state.closed and numbers(state) == 0


def numbers(state: CausalState) -> int:
    return sum(tensor.numel() for tensor in (state.mel, state.source, state.layers, state.f0_layers, state.cycles))


def state_numbers(sizes: CausalVocoderConfig) -> int:
    """Inputs that the layers keep, and what is in flight: source, mel, the last STFT frames and position of the last stage, phase sums."""
    widths = [int(sizes.base_channels / 2**stage) for stage in range(4)]
    blocks = sum(12 * (kernel - 1) * width for width in widths[1:] for kernel in (3, 7, 11))
    sources = sum(12 * (kernel - 1) * width for width, kernel in zip(widths[1:], (7, 7, 11), strict=True))
    others = 15 * widths[0] + 10 * widths[1] + 6 * widths[2] + 6 * widths[3] + 4 * 2 * sizes.f0_channels
    return blocks + sources + others + (64 + 480) + 4 * 80 + 2 * 18 + widths[3] + 9


def test_state_is_what_the_layers_reach_back_to() -> None:
    state = stage().open(0)
    stage().hop([VocoderHop(state, voiced_mel(30), False)])
    assert numbers(state) == state_numbers(CAUSAL)
    assert state_numbers(CausalVocoderConfig()) == 148_557  # 0.6 MB in float32, but for 4105 numbers in float64


def test_keys_and_sizes_are_the_released_ones() -> None:
    shapes = expected_shapes(CausalVocoderConfig())
    assert len(shapes) == 328
    assert sum(int(np.prod(shape)) for shape in shapes.values()) == 20_779_887


def test_the_noise_is_the_references() -> None:
    """Drawn after the initial weights of the full-size networks; first numbers and hash of the reference's table."""
    digest, samples, first = hashlib.sha256(), 0, None
    for piece in reference_noise(DitFlowConfig(), CausalVocoderConfig()):
        first = piece[0] if first is None else first
        digest.update(piece.numpy().astype("<f4").tobytes())
        samples += len(piece)
    assert samples == NOISE_SECONDS * 24_000
    assert first is not None and first[:3].tolist() == pytest.approx([0.92283, 0.47745, 0.82705], abs=1e-5)
    assert digest.hexdigest() == "2f60f92217f65e9f2728d4e662f520432603d88e7a24f78666cc88bb76247f61"


def test_a_model_directory_gives_the_stage(tmp_path: Path) -> None:
    config = write_model(tmp_path, random_state(CAUSAL))
    made = make_vocoder(config, CAUSAL_CHECKPOINT)
    assert isinstance(made, CausalVocoderStage)
    assert len(made.noise) == NOISE_SECONDS * 24_000
    found, mel = made.synthesize(voiced_mel(30), 0), voiced_mel(30)
    assert found.shape == (30 * SAMPLES_PER_MEL_FRAME,) and np.isfinite(found).all()
    assert np.abs(found - at_once(mel)).max() > 1e-4  # other noise
    with pytest.raises(CheckpointError, match=r"hift\.pt"):
        make_vocoder(write_model(tmp_path, random_state()), CAUSAL_CHECKPOINT)
