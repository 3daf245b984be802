"""The claim on a GPU across processes, and how long work for which nobody waits lets it pass."""

from __future__ import annotations

import errno
import multiprocessing
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bistream.gpu.claims import HOPS, STALE_S, TOKENS, Claim, Patience, SharedGpu, gpu_claims
from bistream.processes.control_files import CONTROL_VARIABLE

LONGEST_S = 0.02
LOOK_S = LONGEST_S / 8


def _claim(directory: Path, gpu: int) -> None:
    Claim(directory, gpu, HOPS).claim()


def test_a_claim_is_seen_in_other_processes_on_the_same_gpu_until_it_is_released(tmp_path: Path) -> None:
    here, other_gpu, other_work = Claim(tmp_path, 0, HOPS), Claim(tmp_path, 1, HOPS), Claim(tmp_path, 0, TOKENS)
    assert here.held is None
    process = multiprocessing.get_context("fork").Process(target=_claim, args=(tmp_path, 0))
    process.start()
    process.join()
    assert here.held is not None and other_gpu.held is None and other_work.held is None
    Claim(tmp_path, 0, HOPS).release()
    assert here.held is None


@given(st.lists(st.booleans(), max_size=20))
def test_every_claim_has_another_number_and_a_release_ends_any_of_them(claims: list[bool]) -> None:
    with TemporaryDirectory() as directory:
        way, numbers = Claim(Path(directory), 0, TOKENS), []
        for claims_now in claims:
            if claims_now:
                way.claim()
                numbers.append(way.held)
            else:
                way.release()
                assert way.held is None
        way.close()
    assert None not in numbers and len(set(numbers)) == len(numbers)


def test_closing_twice_is_closing_once(tmp_path: Path) -> None:
    shared = SharedGpu(Claim(tmp_path, 0, HOPS), Claim(tmp_path, 0, TOKENS), LONGEST_S)
    shared.claim()
    shared.close()
    shared.close()
    assert Claim(tmp_path, 0, HOPS).held is None


def test_where_shared_memory_is_full_nobody_gives_way(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The file has its memory from the beginning: touching a page that cannot be had would end the process."""
    Claim(tmp_path, 0, HOPS)
    assert (tmp_path / "gpu0.hops.claim").stat().st_blocks > 0

    def fail(file: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setenv(CONTROL_VARIABLE, str(tmp_path))
    monkeypatch.setattr(os, "posix_fallocate", fail)
    assert not isinstance(gpu_claims(torch.device("cuda"), HOPS), SharedGpu)


def waited(claimed: list[int | None]) -> list[bool]:
    """For each look, ``LOOK_S`` after the one before, whether the work waits; it is done where it does not."""
    looks = iter(claimed)
    patience, found = Patience(lambda: next(looks), LONGEST_S), []
    for number in range(len(claimed)):
        found.append(patience.waits(number * LOOK_S))
        if not found[-1]:
            patience.works()
    return found


def test_work_waits_for_a_claim_and_goes_on_after_it() -> None:
    assert waited([None, 1, 1, 1, None, None]) == [False, True, True, True, False, False]


@given(st.lists(st.integers(1, 3), min_size=1, max_size=200))
def test_however_busy_the_gpu_is_work_never_waits_longer_than_its_patience(changes: list[int]) -> None:
    found = waited(list(changes))
    longest = max(len(run) for run in "".join("w" if waits else " " for waits in found).split(" "))
    assert longest * LOOK_S <= LONGEST_S


def test_asking_again_before_the_work_is_done_changes_nothing() -> None:
    patience = Patience(lambda: 1, LONGEST_S)
    assert patience.waits(0.0)
    assert [patience.waits(LONGEST_S + 0.001 * number) for number in range(3)] == [False] * 3
    patience.works()
    assert patience.waits(LONGEST_S + 0.004)


def test_a_claim_that_does_not_change_counts_for_nothing_after_a_while() -> None:
    patience = Patience(lambda: 7, LONGEST_S)
    moment = 0.0
    while moment < STALE_S:
        if not patience.waits(moment):
            patience.works()
        moment += LOOK_S
    assert not any(patience.waits(moment + number * LOOK_S) for number in range(100))


def test_without_a_gpu_or_a_keeper_there_is_nothing_to_claim(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(CONTROL_VARIABLE, raising=False)
    assert not isinstance(gpu_claims(torch.device("cuda:1"), HOPS), SharedGpu)
    monkeypatch.setenv(CONTROL_VARIABLE, str(tmp_path))
    assert not isinstance(gpu_claims(torch.device("cpu"), HOPS), SharedGpu)
    assert isinstance(gpu_claims(torch.device("cuda:1"), HOPS), SharedGpu) and (tmp_path / "gpu1.hops.claim").exists()
    monkeypatch.setenv(CONTROL_VARIABLE, str(tmp_path / "missing"))
    assert not isinstance(gpu_claims(torch.device("cuda"), HOPS), SharedGpu)


def test_each_side_waits_for_the_other_and_never_for_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(CONTROL_VARIABLE, str(tmp_path))
    hops, tokens = (gpu_claims(torch.device("cuda"), work) for work in (HOPS, TOKENS))
    hops.claim()
    assert tokens.waits(0.0) and not hops.waits(0.0)
    hops.release()
    tokens.claim()
    assert hops.waits(0.0) and not tokens.waits(0.0)
    tokens.close()
    assert not hops.waits(0.0), "what has been closed claims nothing"
    hops.close()


def test_without_a_shared_gpu_nobody_waits() -> None:
    alone = gpu_claims(torch.device("cpu"), HOPS)
    alone.claim()
    assert not alone.waits(0.0) and not gpu_claims(torch.device("cpu"), TOKENS).waits(0.0)
    alone.works()
    alone.release()
    alone.close()
