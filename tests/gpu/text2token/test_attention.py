"""Attention over the paged cache. Kernel: ``attend_rows``."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs a Hopper GPU", allow_module_level=True)

from bistream.text2token.cuda import kernels_attention
from tests.gpu.checks import BOUNDS, Draw, assert_close, assert_untouched
from tests.gpu.text2token.bench import (
    CASES,
    MEASURED_BEST,
    POSITIONS,
    SLOTS,
    USED_SLOTS,
    RowField,
    StepBench,
    fresh_bench,
    give_positions,
    pack,
    to_tiles,
    unpack,
)

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

BOUND = BOUNDS[torch.bfloat16]


def fill_cache(bench: StepBench, draw: Draw, index: int) -> tuple[Tensor, Tensor]:
    """Random keys and values of all blocks that a sequence owns, others stay NaN. bfloat16 [blocks, kv_heads, 64, 64 (dimension)]."""
    shape = (bench.num_blocks, bench.config.num_key_value_heads, 64, 64)
    keys, values = draw.normal(*shape, dtype=torch.bfloat16), draw.normal(*shape, dtype=torch.bfloat16)
    owned = bench.table[:USED_SLOTS].flatten().long()
    bench.cache.blocks[index, owned] = torch.stack([to_tiles(keys), to_tiles(values.transpose(-1, -2))], dim=2)[owned]
    return keys, values


def exact_rows(bench: StepBench, query: Tensor, keys: Tensor, values: Tensor, slot: Tensor, position: Tensor) -> Tensor:
    """float64 [rows, hidden] of live rows."""
    out = []
    for row_query, row_slot, last in zip(query.double(), slot.tolist(), position.tolist(), strict=True):
        blocks = bench.table[row_slot].long()
        seen_keys, seen_values = (part[blocks].transpose(1, 2).flatten(0, 1)[: last + 1].double() for part in (keys, values))
        grouped = row_query.view(bench.config.num_key_value_heads, -1, 64)
        weights = torch.softmax(torch.einsum("ghd,pgd->ghp", grouped, seen_keys) / math.sqrt(64), dim=-1)
        out.append(torch.einsum("ghp,pgd->ghd", weights, seen_values).flatten())
    return torch.stack(out)


def check(bench: StepBench, draw: Draw, rows: int, slot: Tensor, position: Tensor) -> None:
    buffers, index = bench.buffers, 1
    keys, values = fill_cache(bench, draw, index)
    query = draw.normal(rows, bench.config.num_attention_heads, 64, dtype=torch.bfloat16)
    buffers.query[:rows] = pack(query).flatten(1)
    buffers.rows[RowField.START, :rows] = (position * draw.uniform(0.0, 1.0, rows)).int()  # where the step's part of the sequence begins
    buffers.rows[RowField.ORDER, :rows] = draw.permutation(rows).int()
    assert bench.attend(index, rows) is kernels_attention.attend_rows
    live = position >= 0
    found = buffers.attended[:rows]
    found = unpack(found) if rows <= bench.tuning.output_small_rows else found
    assert_close(found[live], exact_rows(bench, query[live], keys, values, slot[live], position[live]), BOUND)
    assert_untouched(found[~live], buffers.attended[rows:])


@pytest.mark.parametrize(("name", "rows"), CASES)
def test_attend_rows(name: str, rows: int) -> None:
    draw = Draw(name, rows)
    bench = fresh_bench(draw, name)
    check(bench, draw, rows, *give_positions(bench, draw, rows))


@pytest.mark.parametrize("rows", [1, 17, 65])
@pytest.mark.parametrize("last", [0, 1, 62, 63, 64, 127, 128, 255, 256, 257, 511, 512, 767, 768, 769, POSITIONS - 1])
def test_attend_rows_of_one_length(last: int, rows: int) -> None:
    """Around the splits of 64 positions, the four that are merged at once, and the prefetched stages."""
    draw = Draw(last, rows)
    bench = fresh_bench(draw, "real")
    slot = torch.arange(rows, device=bench.table.device) % USED_SLOTS
    position = torch.full_like(slot, last)
    bench.buffers.rows[RowField.SLOT, :rows] = slot.int()
    bench.buffers.rows[RowField.POSITION, :rows] = position.int()
    check(bench, draw, rows, slot, position)


def test_padding_alone_writes_nothing() -> None:
    draw = Draw()
    bench = fresh_bench(draw, "real")
    bench.buffers.rows[RowField.SLOT, :4] = SLOTS
    bench.buffers.rows[RowField.START, :4] = 0
    bench.buffers.rows[RowField.ORDER, :4] = torch.arange(4)
    bench.attend(0, 4)
    assert_untouched(bench.buffers.attended)


def test_successors_that_start_late_change_nothing() -> None:
    """``LATE`` moves the start of the next kernel and changes no result."""
    found = []
    for tuning in (MEASURED_BEST, dataclasses.replace(MEASURED_BEST, attention_late=True)):
        draw = Draw()
        bench = fresh_bench(draw, "real", tuning)
        check(bench, draw, 24, *give_positions(bench, draw, 24))
        found.append(bench.buffers.attended[:4].clone())
    assert torch.equal(*found)
