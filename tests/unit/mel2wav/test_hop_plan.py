"""Grouping of sessions into recorded calls, and the integers that describe their rows."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.mel2wav.graphs import meta
from bistream.mel2wav.hop_plan import BUCKETS, RowPlan, bucket_of, group_rows

LONGEST = max(bucket.frames for bucket in BUCKETS)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, LONGEST), min_size=1, max_size=80))
def test_groups_hold_every_row_once_and_fit(lengths: list[int]) -> None:
    groups = group_rows(lengths)
    assert sorted(position for group in groups for position in group) == list(range(len(lengths)))
    for group in groups:
        bucket = bucket_of(len(group), max(lengths[position] for position in group))
        assert bucket is not None and bucket.rows >= len(group)


def test_there_is_no_bucket_for_longer_rows() -> None:
    assert bucket_of(1, LONGEST) is not None and bucket_of(1, LONGEST + 1) is None


def test_64_sessions_go_into_one_call_for_first_and_steady_hops() -> None:
    assert len(group_rows([30] * 64)) == 1 and len(group_rows([66] * 64)) == 1


def test_rows_of_the_graph_tier() -> None:
    out = np.full((4, meta.META_NUMBERS), 7, np.int64)
    plan = RowPlan(
        slot=3, frames=66, context=16, overlap=8, first_frame=42, starts=False, fades=True, kept_source=8, out_frame=5, emitted=58,
        next_first=50, key=(0xFFFFFFFF, 1),
    )  # fmt: skip
    meta.pack_rows([plan, plan], out)
    assert out[2:].max() == 0  # rows without a session have no frames
    assert out[0].tolist() == [3, 66, 16, 8, 42, 0, 1, 8, 0, 5, 58, 50, 0xFFFFFFFF, 1]
    assert out[1, meta.NEW] == 50  # its new frames follow those of the previous row
