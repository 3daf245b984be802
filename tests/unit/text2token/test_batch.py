"""The host's input to a recorded step: rows, turn starts, buckets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from bistream.families.cosyvoice3 import COSYVOICE3
from bistream.text2token.engine import SamplingSpec, TokenSpace, TurnLimits
from bistream.text2token.graphs.batch import NUM_FIELDS, NUM_START_NUMBERS, RowField, bucket_sizes, write_rows, write_starts
from bistream.text2token.sampler import SamplerState
from bistream.text2token.sequence import Segment, SlotReset, TurnStart
from tests.plain_step import begin_turns
from tests.unit.text2token.tiny import CONFIG

SPACE = TokenSpace.of(replace(CONFIG, rows=COSYVOICE3.rows))  # whose four special ids are the most
CPU = torch.device("cpu")
FILLER = 99
SPECIALS = st.frozensets(st.sampled_from(SPACE.specials))
SEGMENTS = st.lists(
    st.builds(
        Segment,
        slot=st.integers(0, 90),
        position=st.integers(0, 5000),
        ids=st.none() | st.lists(st.integers(0, SPACE.size - 1), min_size=1, max_size=9).map(tuple),
        samples=st.booleans(),
    ),
    max_size=12,
)


@given(SEGMENTS, st.integers(0, 5))
def test_rows_are_the_segments_in_order_then_padding(segments: list[Segment], padding: int) -> None:
    count = sum(segment.num_rows for segment in segments)
    target = np.full((count + padding, NUM_FIELDS), 7, dtype=np.int32)
    sampling = write_rows(target, segments, FILLER)
    row = 0
    ends = []
    for segment in segments:
        for offset, token_id in enumerate((-1,) if segment.ids is None else segment.ids):
            last = offset == segment.num_rows - 1
            assert target[row, [RowField.SLOT, RowField.TOKEN]].tolist() == [segment.slot, token_id]
            assert target[row, RowField.POSITION] == segment.position + offset
            assert target[row, RowField.SAMPLES] == (segment.samples and last)
            row += 1
        ends += [row - 1] if segment.samples else []
    assert sampling == ends
    assert (target[count:, RowField.SLOT] == FILLER).all() and (target[count:, RowField.POSITION] == -1).all()
    assert not target[count:, [RowField.TOKEN, RowField.SAMPLES]].any()
    order = target[:, RowField.ORDER].tolist()
    assert sorted(order) == list(range(len(target)))
    positions = target[:, RowField.POSITION].tolist()
    assert [positions[row] for row in order] == sorted(positions, reverse=True), "the longest context does not come first"


@given(
    st.builds(TurnLimits, st.integers(1, 10**6), st.integers(0, 50), SPECIALS, SPECIALS, st.none() | st.just(SPACE.fill)),
    st.builds(
        SamplingSpec, st.floats(0.1, 1.0), st.integers(1, 500), st.integers(0, 64), st.floats(0, 2), st.floats(0, 10),
        st.integers(-(2**63), 2**63 - 1),
    ),
    st.booleans(),
)  # fmt: skip
def test_turn_starts_reach_the_device_as_the_plain_sampler_has_them(limits: TurnLimits, spec: SamplingSpec, new: bool) -> None:
    start = TurnStart(2, limits, limits.max_new_ids, SlotReset("a", spec, (5, 3, 8)) if new else None)
    plain, device = (SamplerState(4, SPACE, 64, CPU) for _ in range(2))
    plain.start_turns([start])
    numbers, blocks = np.zeros((1, NUM_START_NUMBERS), dtype=np.int64), np.zeros((1, 6), dtype=np.int32)
    table = torch.zeros((5, 6), dtype=torch.int32)
    write_starts(numbers, blocks, [start], SPACE)
    begin_turns(torch.from_numpy(numbers), torch.from_numpy(blocks), table, device)
    for name, value in vars(plain).items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(getattr(device, name)[2], value[2]), name
    assert table[2].tolist() == ([5, 3, 8, 0, 0, 0] if new else [0] * 6)


@given(st.integers(1, 2000))
def test_buckets_ascend_to_the_most_rows(max_rows: int) -> None:
    sizes = bucket_sizes(max_rows)
    assert list(sizes) == sorted(set(sizes)) and sizes[-1] == max_rows and sizes[0] == 1
    assert all(wide <= max(2 * narrow, narrow + 64) for narrow, wide in zip(sizes, sizes[1:], strict=False))
