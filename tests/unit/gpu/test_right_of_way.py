"""The claim on a GPU across processes, and how long work for which nobody waits lets it pass."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bistream.control_files import CONTROL_VARIABLE
from bistream.gpu.right_of_way import PATIENCE_S, STALE_S, Patience, RightOfWay, right_of_way

LOOK_S = PATIENCE_S / 8


def _claim(directory: Path, gpu: int) -> None:
    RightOfWay(directory, gpu).claim()


def test_a_claim_is_seen_in_other_processes_on_the_same_gpu_until_it_is_released(tmp_path: Path) -> None:
    here, other_gpu = RightOfWay(tmp_path, 0), RightOfWay(tmp_path, 1)
    assert here.claimed is None
    process = multiprocessing.get_context("spawn").Process(target=_claim, args=(tmp_path, 0))
    process.start()
    process.join()
    assert here.claimed is not None and other_gpu.claimed is None
    RightOfWay(tmp_path, 0).release()
    assert here.claimed is None


@given(st.lists(st.booleans(), max_size=20))
def test_every_claim_has_another_number_and_a_release_ends_any_of_them(claims: list[bool]) -> None:
    with TemporaryDirectory() as directory:
        way, numbers = RightOfWay(Path(directory), 0), []
        for claims_now in claims:
            if claims_now:
                way.claim()
                numbers.append(way.claimed)
            else:
                way.release()
                assert way.claimed is None
        way.close()
    assert None not in numbers and len(set(numbers)) == len(numbers)


def waited(claimed: list[int | None]) -> list[bool]:
    """For each look, ``LOOK_S`` after the one before, whether the work waits; it is done where it does not."""
    looks = iter(claimed)
    patience, found = Patience(lambda: next(looks)), []
    for number in range(len(claimed)):
        found.append(patience.waits(number * LOOK_S))
        if not found[-1]:
            patience.worked()
    return found


def test_work_waits_for_a_claim_and_goes_on_after_it() -> None:
    assert waited([None, 1, 1, 1, None, None]) == [False, True, True, True, False, False]


@given(st.lists(st.integers(1, 3), min_size=1, max_size=200))
def test_however_busy_the_gpu_is_work_never_waits_longer_than_its_patience(changes: list[int]) -> None:
    found = waited(list(changes))
    longest = max(len(run) for run in "".join("w" if waits else " " for waits in found).split(" "))
    assert longest * LOOK_S <= PATIENCE_S


def test_asking_again_before_the_work_is_done_changes_nothing() -> None:
    patience = Patience(lambda: 1)
    assert patience.waits(0.0)
    assert [patience.waits(PATIENCE_S + 0.001 * number) for number in range(3)] == [False] * 3
    patience.worked()
    assert patience.waits(PATIENCE_S + 0.004)


def test_a_claim_that_does_not_change_counts_for_nothing_after_a_while() -> None:
    patience = Patience(lambda: 7)
    moment = 0.0
    while moment < STALE_S:
        if not patience.waits(moment):
            patience.worked()
        moment += LOOK_S
    assert not any(patience.waits(moment + number * LOOK_S) for number in range(100))


def test_without_a_gpu_or_a_keeper_there_is_nothing_to_claim(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(CONTROL_VARIABLE, raising=False)
    assert right_of_way(torch.device("cuda:1")) is None
    monkeypatch.setenv(CONTROL_VARIABLE, str(tmp_path))
    assert right_of_way(torch.device("cpu")) is None
    assert right_of_way(torch.device("cuda:1")) is not None and (tmp_path / "gpu1.claim").exists()
    monkeypatch.setenv(CONTROL_VARIABLE, str(tmp_path / "missing"))
    assert right_of_way(torch.device("cuda")) is None
