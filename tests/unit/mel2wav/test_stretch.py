"""The stretched mel of a stream: upstream's interpolation, whatever the cuts, and each run of one speed by itself."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from bistream.contract.checks import MAX_SPEED, MIN_SPEED
from bistream.hops.speeds import heard_frames
from bistream.mel2wav.stretch import MelStretch

BINS = 3
SPEEDS = st.floats(MIN_SPEED, MAX_SPEED) | st.sampled_from([0.5, 0.8, 1.0, 1.1, 1.25, 1.5, 1.9, 2.0])
PIECES = st.lists(st.tuples(st.integers(0, 30), SPEEDS), min_size=1, max_size=6)  # frames of a hop, and their speed
# torch's places are float32: 1e-5 at the 300th frame, and its neighbours differ by up to 8.
ROUNDING = 1e-4


def mel_of(frames: int, seed: int = 0) -> Tensor:
    return torch.randn(BINS, frames, generator=torch.Generator().manual_seed(seed))


def stretched(mel: Tensor, pieces: Sequence[tuple[int, float]], late: int = 0) -> Tensor:
    """late: frames that come a hop later than they were expected, as those behind the flow's lookahead do."""
    stretch, made, came, known = MelStretch(), [], 0, 0
    for index, (frames, speed) in enumerate(pieces):
        stretch.expect(frames, speed)
        known += frames
        is_last = index == len(pieces) - 1
        end = known if is_last else max(came, known - late)
        made.append(stretch.push(mel[:, came:end], is_last))
        came = end
    return torch.cat(made, dim=1)


def runs_of(pieces: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    spoken = [piece for piece in pieces if piece[0]]
    return [(sum(frames for frames, _ in members), speed) for speed, members in groupby(spoken, key=lambda piece: piece[1])]


def interpolated(mel: Tensor, speed: float) -> Tensor:
    """A run as the formula says it; beyond its ends there is its first and last frame."""
    frames = mel.shape[1]
    places = (np.arange(int(frames / speed)) + 0.5) * speed - 0.5
    return torch.tensor(np.array([np.interp(places, np.arange(frames), row) for row in mel.numpy()]), dtype=torch.float32)


@given(PIECES, st.integers(0, 12))
@example([(9, 1.9), (1, 1.9), (1, 1.9)], 0)
@example([(0, 2.0), (1, 2.0), (7, 0.5)], 6)
def test_every_run_is_interpolated_by_itself(pieces: list[tuple[int, float]], late: int) -> None:
    mel = mel_of(sum(frames for frames, _ in pieces))
    expected, begin = [mel[:, :0]], 0
    for frames, speed in runs_of(pieces):
        expected.append(interpolated(mel[:, begin : begin + frames], speed))
        begin += frames
    found = stretched(mel, pieces, late)
    torch.testing.assert_close(found, torch.cat(expected, dim=1), rtol=0, atol=1e-5)  # float32 shares of neighbours


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), SPEEDS, st.integers(0, 12))
def test_cuts_change_no_bit_and_the_length_is_upstreams(cuts: list[int], speed: float, late: int) -> None:
    mel = mel_of(sum(cuts))
    found = stretched(mel, [(frames, speed) for frames in cuts], late)
    assert torch.equal(found, stretched(mel, [(mel.shape[1], speed)])) and found.shape[1] == int(mel.shape[1] / speed)


@given(st.integers(1, 60), st.sampled_from([(0.5, 1), (0.8, 4), (1.25, 5), (1.6, 8), (2.0, 2)]))
def test_it_is_upstreams_where_the_length_is_a_whole_number(count: int, speed_and_unit: tuple[float, int]) -> None:
    speed, unit = speed_and_unit
    mel = mel_of(count * unit)
    upstream = F.interpolate(mel[None], size=int(mel.shape[1] / speed), mode="linear")[0]
    torch.testing.assert_close(stretched(mel, [(mel.shape[1], speed)]), upstream, rtol=0, atol=ROUNDING)


@given(st.integers(2, 300), SPEEDS)
def test_a_place_is_less_than_a_frame_of_audio_before_upstreams(frames: int, speed: float) -> None:
    """A ramp shows the places themselves."""
    ramp = torch.arange(frames, dtype=torch.float32)[None]
    found = stretched(ramp, [(frames, speed)])[0]
    upstream = F.interpolate(ramp[None], size=int(frames / speed), mode="linear")[0, 0]
    late = upstream - found
    assert late.min() >= -1e-4 * frames and late.max() <= speed + 1e-4 * frames


@given(st.lists(st.integers(0, 20), min_size=1, max_size=5))
def test_at_the_usual_speed_every_frame_goes_through_at_once(cuts: list[int]) -> None:
    stretch, mel, begin = MelStretch(), mel_of(sum(cuts)), 0
    for frames in cuts:
        stretch.expect(frames, 1.0)
        assert torch.equal(stretch.push(mel[:, begin : begin + frames], False), mel[:, begin : begin + frames])
        begin += frames


@given(st.integers(1, 40), SPEEDS)
def test_little_is_held_back(frames: int, speed: float) -> None:
    """Of a run that goes on: what lies behind its last frame, and a frame of audio that is not complete."""
    stretch = MelStretch()
    stretch.expect(frames, speed)
    assert stretch.push(mel_of(frames), False).shape[1] >= heard_frames(frames, speed) - 1


def test_frames_that_nobody_expected_are_a_bug() -> None:
    with pytest.raises(AssertionError):
        MelStretch().push(mel_of(1), False)
