"""Which GPU each server gets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.keeper.gpu_sharing import deal_out, visible_gpus

INSTALLED = ["GPU-a", "GPU-b", "GPU-c"]


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        (None, INSTALLED),
        ("", []),
        ("2,0", ["GPU-c", "GPU-a"]),
        (" 1 , GPU-a", ["GPU-b", "GPU-a"]),
        ("0,-1,1", ["GPU-a"]),  # as CUDA reads it
        ("MIG-x", ["MIG-x"]),
        ("7", ["7"]),  # CUDA refuses it in its own words
    ],
)
def test_visible_gpus_are_named_so_that_a_process_of_their_own_finds_them(variable: str | None, expected: list[str]) -> None:
    environment = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    assert visible_gpus(environment, lambda: INSTALLED) == expected


def test_numbers_stay_where_the_driver_does_not_tell_names() -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "0,1"}, list) == ["0", "1"]


@given(gpus=st.integers(0, 8), servers=st.none() | st.integers(1, 20))
def test_servers_share_gpus_evenly(gpus: int, servers: int | None) -> None:
    names = [f"GPU-{number}" for number in range(gpus)]
    dealt = deal_out(names, servers)
    assert len(dealt) == (gpus if servers is None else servers)
    if gpus:
        counts = [dealt.count(name) for name in names]
        assert sum(counts) == len(dealt) and max(counts) - min(counts) <= 1
    else:
        assert set(dealt) <= {None}
