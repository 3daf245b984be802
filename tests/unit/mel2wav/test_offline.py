"""Offline synthesis in pieces: the same audio as one call over the whole mel, and hops may run between its steps."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.checkpoints.config import VocoderConfig
from bistream.config import RuntimeConfig
from bistream.gpu.steps import finish
from bistream.mel2wav import offline
from bistream.mel2wav import stage as stage_module
from bistream.mel2wav.stage import VocoderHop, VocoderStage
from bistream.types import FloatArray
from tests.unit.mel2wav import tiny
from tests.unit.mel2wav.plain_slots import PlainSlots

SEED = 5
TOLERANCE = 2e-3  # f0 in Hz is rounded, and the phase accumulates it


@pytest.fixture(scope="module", params=[VocoderStage, PlainSlots])
def stage(request: pytest.FixtureRequest, config: RuntimeConfig) -> VocoderStage:
    stage: VocoderStage = request.param(config, tiny.CHECKPOINT)
    return stage


def in_one_call(stage: VocoderStage, mel: torch.Tensor) -> FloatArray:
    """The whole mel as one final hop of the plain network."""
    state = VocoderStage.open(stage, SEED)
    return VocoderStage.hop(stage, [VocoderHop(state, mel, finalize=True)])[0]


@settings(max_examples=3)
@given(frames=st.integers(1, 150), piece_frames=st.integers(1, 60))
def test_pieces_give_the_audio_of_one_call(stage: VocoderStage, frames: int, piece_frames: int) -> None:
    mel = tiny.voiced_mel(frames, seed=frames)
    with mock.patch.dict(stage_module.OFFLINE_PIECE_FRAMES, cpu=piece_frames):
        found = stage.synthesize(mel, SEED)
    np.testing.assert_allclose(found, in_one_call(stage, mel), atol=TOLERANCE)


def test_the_halo_covers_every_kernel_of_the_released_network() -> None:
    assert 14 <= offline.halo_frames(VocoderConfig()) <= 20
    wider = VocoderConfig(resblock_kernel_sizes=(3, 7, 33))
    assert offline.halo_frames(wider) > offline.halo_frames(VocoderConfig()) + 20


def test_hops_between_the_steps_change_nothing(stage: VocoderStage) -> None:
    mel, other = tiny.voiced_mel(130, seed=2), tiny.voiced_mel(200, seed=3)
    expected, state, steps = stage.synthesize(mel, SEED), stage.open(1), stage.synthesis(mel, SEED)
    with torch.inference_mode():
        for begin in range(0, 60, 20):
            next(steps)
            stage.hop([VocoderHop(state, other[:, begin : begin + 20], finalize=False)])
        found = finish(steps)
    state.close()
    np.testing.assert_array_equal(found, expected)


def test_the_time_of_a_step_does_not_grow_with_the_utterance(stage: VocoderStage) -> None:
    """Counted in frames that one call of a network reads."""
    longest = []
    decode = stage.hift.decode
    for frames in (150, 300):
        lengths: list[int] = []

        def counted(mel: torch.Tensor, *arguments: Any, lengths: list[int] = lengths) -> torch.Tensor:
            lengths.append(mel.shape[2])
            return decode(mel, *arguments)

        with mock.patch.object(stage.hift, "decode", counted):
            stage.synthesize(tiny.voiced_mel(frames), SEED)
        longest.append(max(lengths))
    assert longest[0] == longest[1] < 100
