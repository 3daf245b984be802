"""The host's input to a recorded step: rows, turn starts, buckets."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.text2token.engine import SamplingSpec, TurnLimits
from bistream.text2token.graphs.batch import NUM_FIELDS, NUM_START_NUMBERS, RowField, StartField, bucket_sizes, write_rows, write_starts
from bistream.text2token.sampler import SamplerState
from bistream.text2token.sequence import Segment, SlotReset, TurnStart
from tests.unit.text2token.tiny import SPACE

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


@settings(max_examples=20, deadline=None)
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


@settings(max_examples=20, deadline=None)
@given(
    st.builds(TurnLimits, st.integers(1, 10**6), st.integers(0, 50), SPECIALS, SPECIALS, st.none() | st.just(SPACE.fill)),
    st.builds(
        SamplingSpec, st.floats(0.1, 1.0), st.integers(1, 500), st.integers(0, 64), st.floats(0, 2), st.floats(0, 10),
        st.integers(-(2**63), 2**63 - 1),
    ),
    st.booleans(),
)  # fmt: skip
def test_turn_starts_hold_what_the_plain_sampler_state_would(limits: TurnLimits, spec: SamplingSpec, new: bool) -> None:
    reset = SlotReset("a", spec, (5, 3, 8)) if new else None
    start = TurnStart(2, limits, limits.max_new_ids, reset)
    state = SamplerState(4, SPACE, 64, CPU)
    state.start_turns([start])
    numbers = np.zeros((1, NUM_START_NUMBERS), dtype=np.int64)
    blocks = np.zeros((1, 6), dtype=np.int32)
    write_starts(numbers, blocks, [start], SPACE)
    row = {field: numbers[0, field].item() for field in StartField}
    assert (row[StartField.SLOT], row[StartField.NUM_BLOCKS]) == (2, 3 if new else 0)
    assert (row[StartField.MAX_NEW], row[StartField.MIN_NEW]) == (state.max_new[2], state.min_new[2])
    assert row[StartField.RECORD_ON_LENGTH] == state.record_on_length[2]
    assert [row[StartField.FORBIDDEN] >> bit & 1 for bit in range(3)] == state.forbidden[2].tolist()
    assert [row[StartField.FORBIDDEN_EARLY] >> bit & 1 for bit in range(3)] == state.forbidden_early[2].tolist()
    if new:
        assert (row[StartField.TOP_K], row[StartField.WIN_SIZE]) == (state.top_k[2], state.win_size[2])
        assert (row[StartField.MIN_REPEATS], row[StartField.KEY]) == (state.min_repeats[2], state.key[2])
        floats = numbers[0, [StartField.TOP_P, StartField.TEMPERATURE]].astype(np.int32).view(np.float32).tolist()
        assert floats == [state.top_p[2], state.temperature[2]]
        assert blocks[0].tolist() == [5, 3, 8, 0, 0, 0]


@given(st.integers(1, 2000))
def test_buckets_ascend_to_the_most_rows(max_rows: int) -> None:
    sizes = bucket_sizes(max_rows)
    assert list(sizes) == sorted(set(sizes)) and sizes[-1] == max_rows and sizes[0] == 1
    assert all(wide <= max(2 * narrow, narrow + 64) for narrow, wide in zip(sizes, sizes[1:], strict=False))
