"""What the GPU vocoder decides without a GPU: buckets, groups, rows, and weights in another form."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from bistream.mel2wav.cuda.rows import BUCKETS, META_NUMBERS, RowPlan, bucket_of, group_rows, pack_rows
from bistream.mel2wav.cuda.weights import pack_weights
from bistream.mel2wav.hift import HiFT
from bistream.mel2wav.weights import fold_weight_norm
from tests.unit.mel2wav.tiny import CONFIG, random_state

LONGEST = max(bucket.frames for bucket in BUCKETS)


@settings(max_examples=60, deadline=None)
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


def test_rows_without_a_session_have_no_frames() -> None:
    out = np.full((4, META_NUMBERS), 7, np.int32)
    plan = RowPlan(3, 66, 16, 8, 42, False, True, 8, 5, 58, 50, (0xFFFFFFFF, 1))
    pack_rows([plan, plan], out)
    assert out[2:].max() == 0
    assert out[0].tolist() == [3, 66, 16, 8, 8, 42, 0, 1, 8, 0, 5, 58, 50, -1, 1, 0]
    assert out[1, 9] == 50  # its new frames lie behind those of the row before


def test_transposed_convolutions_as_interleaved_convolutions() -> None:
    hift = HiFT(CONFIG)
    hift.load_state_dict(fold_weight_norm(random_state()))
    weights = pack_weights(hift, torch.float32)
    for stage, up in zip(weights.stages, hift.ups, strict=True):
        assert isinstance(up, nn.ConvTranspose1d)
        conv = stage.up
        x = torch.randn(1, conv.channels, 11, generator=torch.Generator().manual_seed(1))
        padded = F.pad(x, (conv.taps - 1, conv.taps - 1))  # positions before and behind are zero
        rows = torch.stack([padded[0, :, q : q + conv.taps].flip(1) for q in range(12)])  # tap k reads position q - k
        out = torch.einsum("qck,okc->qo", rows, conv.weight).view(12 * conv.up, conv.features) + conv.bias
        found = out[conv.crop : conv.crop + 11 * conv.up].T
        torch.testing.assert_close(found, up(x)[0], rtol=0, atol=1e-4)
