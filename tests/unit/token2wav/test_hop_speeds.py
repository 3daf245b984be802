"""Hops at speeds of their own, in the service over fake stages: a frame of the fake mel is the number of its token."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from bistream.errors import InvalidInputError
from bistream.token2wav.hop_jobs import check_speed
from tests.formats import SAMPLES_PER_TOKEN
from tests.unit.token2wav.test_service import TIMEOUT_S, FakeFlow, FakeVocoder, Rig, audio, error, rig, speech_stages

__all__ = ["rig"]


def test_a_hop_has_the_speed_of_its_tokens(rig: Rig) -> None:
    def frames(future: Future[Any]) -> list[float]:
        return [round(float(value), 3) for value in future.result(TIMEOUT_S)[:: SAMPLES_PER_TOKEN // 2]]

    assert frames(rig.hop("a", 1, 2, start=True, speed=2.0)) == [1, 2]
    assert frames(rig.hop("a", 3)) == [3, 3]
    assert frames(rig.hop("a", 4, 8, speed=0.5)) == [4, 4, 4, 5, 7, 8, 8], "its end is known with the next hop"
    assert frames(rig.hop("a", speed=0.5, finalize=True)) == [8]
    assert frames(rig.hop("b", 4, 5, 6, start=True, speed=1.5, finalize=True)) == [4, 4.75, 5.25, 6]


def test_a_wrong_speed_leaves_the_session_unchanged(rig: Rig) -> None:
    for speed in (0.4, 2.1, float("nan")):
        assert "speed" in error(rig.hop("a", 1, start=True, speed=speed)).sentence
    assert audio(rig.hop("a", 1, start=True, finalize=True)) == [1]


def test_without_a_mel_there_is_no_speed() -> None:
    renderer = speech_stages(FakeFlow(), FakeVocoder())
    renderer.sizes = replace(renderer.sizes, mel_bins=0)
    with pytest.raises(InvalidInputError, match="has no speed"):
        check_speed(renderer, 1.5)
    check_speed(renderer, 1.0)
