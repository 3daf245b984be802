"""Rows are read as they were written, with an error of at most half a quantisation step."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bistream.token2mel.state_rows import LARGEST, StateRows, row_bytes

CPU = torch.device("cpu")


@given(st.integers(0, 10_000), st.integers(1, 40), st.floats(1e-6, 1e6))
def test_rows_come_back_within_half_a_step(seed: int, width: int, size: float) -> None:
    rows = size * torch.randn(2, 3, width, generator=torch.Generator().manual_seed(seed))
    rows[0, 1] = 0.0
    store, places = StateRows.empty((2, 5, width), torch.float16, CPU), torch.tensor([4, 0, 2])
    store.write(1, places, rows)
    half_a_step = rows.abs().amax(dim=-1, keepdim=True) / LARGEST / 2
    assert ((store.read(1, places) - rows).abs() <= 1.001 * half_a_step).all()
    assert torch.equal(store.read(1, places)[0, 1], torch.zeros(width))


@given(st.integers(0, 10_000))
def test_a_network_of_float32_stores_all_of_it(seed: int) -> None:
    rows = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(seed))
    store, places = StateRows.empty((2, 5, 7), torch.float32, CPU), torch.tensor([4, 0, 2])
    store.write(1, places, rows)
    assert torch.equal(store.read(1, places), rows)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_row_that_is_not_finite_stays_so_and_no_other_becomes_it(bad: float) -> None:
    rows = torch.ones(1, 2, 8)
    rows[0, 1, 3] = bad
    store = StateRows.empty((1, 2, 8), torch.bfloat16, CPU)
    store.write(1, torch.tensor([0, 1]), rows)
    found = store.read(1, torch.tensor([0, 1]))
    assert found[0, 0].isfinite().all() and not found[0, 1].isfinite().any()


@given(st.integers(1, 64), st.sampled_from([torch.float16, torch.float32]))
def test_the_memory_of_a_row(width: int, dtype: torch.dtype) -> None:
    store = StateRows.empty((1, 3, width), dtype, CPU)
    tensors = [tensor for tensor in (store.values, store.scales) if tensor is not None]
    assert sum(tensor.nbytes for tensor in tensors) == 3 * row_bytes(width, dtype)
