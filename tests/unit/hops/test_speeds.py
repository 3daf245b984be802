"""Where the speech is after so much audio, for any speeds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.hops.speeds import SpeedRuns, heard_frames

SPEEDS = st.floats(0.5, 2.0) | st.sampled_from([0.5, 1.0, 1.25, 2.0])
PARTS = st.lists(st.tuples(st.integers(0, 200), SPEEDS), max_size=6)


def runs_of(parts: list[tuple[int, float]]) -> SpeedRuns:
    runs = SpeedRuns()
    for frames, speed in parts:
        runs.add(frames, speed)
    return runs


@given(PARTS, st.lists(st.floats(0, 1000), min_size=2, max_size=8))
def test_the_place_only_grows_and_never_leaves_its_run(parts: list[tuple[int, float]], heard: list[float]) -> None:
    runs = runs_of(parts)
    places = [runs.spoken_at(one) for one in sorted(heard)]
    assert places == sorted(places)
    spoken = sum(frames for frames, _ in parts)
    assert runs.spoken_at(runs.heard) <= spoken < runs.spoken_at(runs.heard) + 2.0 or not spoken


@given(st.integers(0, 500), SPEEDS, st.lists(st.integers(0, 40), max_size=5))
def test_one_speed_is_one_run_however_it_comes(frames: int, speed: float, cuts: list[int]) -> None:
    runs = runs_of([(cut, speed) for cut in (*cuts, frames)])
    total = frames + sum(cuts)
    assert runs.heard == heard_frames(total, speed) == int(total / speed)
    if total:
        assert runs.spoken_at(10.0) == 10.0 * speed


@given(st.floats(0, 1e6))
def test_without_speech_and_at_the_usual_speed_both_are_the_same(heard: float) -> None:
    assert SpeedRuns().spoken_at(heard) == heard == runs_of([(7, 1.0)]).spoken_at(heard)


@pytest.mark.parametrize(("heard", "spoken"), [(0, 0), (5, 10), (10, 20), (12, 21), (30, 30), (31, 31.5)])
def test_an_example(heard: float, spoken: float) -> None:
    """20 frames twice as fast, 10 half as fast, and then half as much faster."""
    assert runs_of([(20, 2.0), (10, 0.5), (30, 1.5)]).spoken_at(heard) == spoken
