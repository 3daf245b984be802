"""The host's rows on the device, and the embedding of their ids. Kernel: ``begin_rows``."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs a Hopper GPU", allow_module_level=True)

from bistream.text2token.cuda import kernels_embedding
from tests.gpu.checks import SENTINEL, Draw, assert_untouched, poison
from tests.gpu.text2token.bench import CASES, DEPTH, LAST_SAMPLED, NUM_FIELDS, SLOTS, RowField, fresh_bench, sums_of_squares, unpack

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]


@pytest.mark.parametrize(("name", "rows"), CASES)
def test_begin_rows(name: str, rows: int) -> None:
    draw = Draw(name, rows)
    bench = fresh_bench(draw, name)
    buffers, embedding, step = bench.buffers, bench.packed.embedding, rows % DEPTH
    poison(buffers.rows, buffers.arrived)
    buffers.clock[:] = torch.tensor([step, SENTINEL])
    fields = draw.integers(0, 1000, rows, NUM_FIELDS)
    fields[:, RowField.SLOT] = draw.integers(0, SLOTS, rows)
    fields[:, RowField.TOKEN] = draw.integers(0, len(embedding), rows)
    fields[::2, RowField.TOKEN] = LAST_SAMPLED
    buffers.ring[:] = SENTINEL
    buffers.ring[step, :rows] = fields.cpu()
    bench.state.last_id[:] = draw.integers(0, len(embedding), SLOTS + 1, dtype=torch.int64)
    assert bench.begin(rows) is kernels_embedding.begin_rows

    assert torch.equal(buffers.rows[:, :rows], fields.T)
    given = fields[:, RowField.TOKEN].long()
    token = torch.where(given == LAST_SAMPLED, bench.state.last_id[fields[:, RowField.SLOT].long()], given)
    assert torch.equal(buffers.x[:rows], embedding[token].float())
    xb = buffers.xb[:rows]
    assert torch.equal(unpack(xb) if rows <= bench.tuning.qkv_small_rows else xb, embedding[token])
    assert torch.equal(buffers.squares[0, :rows], sums_of_squares(embedding[token].float()))
    assert not buffers.squares[1:, :rows].any() and not buffers.arrived.any()
    assert buffers.clock.tolist() == [step, step]
    assert_untouched(buffers.rows[:, rows:], buffers.x[rows:], buffers.xb[rows:], buffers.squares[:, rows:])
