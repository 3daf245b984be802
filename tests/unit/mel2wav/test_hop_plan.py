"""Grouping of sessions into recorded calls, and the integers that describe their rows."""

from __future__ import annotations

from bistream.mel2wav.hop_plan import BUCKETS, bucket_of, group_rows

LONGEST = max(bucket.frames for bucket in BUCKETS)


def test_there_is_no_bucket_for_longer_rows() -> None:
    assert bucket_of(1, LONGEST) is not None and bucket_of(1, LONGEST + 1) is None


def test_64_sessions_go_into_one_call_for_first_and_steady_hops() -> None:
    assert len(group_rows([30] * 64)) == 1 and len(group_rows([66] * 64)) == 1
