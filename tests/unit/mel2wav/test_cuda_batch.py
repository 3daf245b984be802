"""Inputs of the vocoder's kernels: integer descriptions of rows, and repacked weights."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from bistream.checkpoint_config import VocoderConfig
from bistream.mel2wav.cuda.batch import (
    FRAME_GAP,
    MAX_ACTIVES,
    MAX_RESIDUALS,
    META_NUMBERS,
    SEGMENT_NUMBERS,
    MetaField,
    Rate,
    SegmentField,
    pack_rows,
)
from bistream.mel2wav.cuda.weights import F0_SCALE, pack_weights, split_sum
from bistream.mel2wav.cuda.weights_tiles import SLICE, TileList
from bistream.mel2wav.hift import HiFT
from bistream.mel2wav.hop_plan import BUCKETS, RowPlan
from bistream.mel2wav.sizes import GAP
from bistream.mel2wav.weights import fold_weight_norm
from tests.unit.mel2wav.tiny import random_state

WIDE = VocoderConfig(f0_channels=64, resblock_kernel_sizes=(3,), resblock_dilation_sizes=((1,),))  # widths that the kernels support
LONGEST = max(bucket.frames for bucket in BUCKETS)


RATES = [Rate(1, 0, FRAME_GAP), Rate(8, 0, GAP), Rate(120, 1, GAP)]


def test_rows_without_a_session_have_no_frames() -> None:
    out = np.full((5, META_NUMBERS), 7, np.int32)
    plan = RowPlan(3, 66, 16, 8, 42, False, True, 8, 5, 58, 50, (0xFFFFFFFF, 1))
    pack_rows([plan, plan], out, RATES)
    assert out[2:-1].max() == 0
    first = {field: int(out[0, field]) for field in MetaField}
    assert (first[MetaField.SLOT], first[MetaField.FRAMES], first[MetaField.CONTEXT]) == (3, 66, 16)
    assert (first[MetaField.OVERLAP], first[MetaField.FIRST_FRAME], first[MetaField.KEPT_SOURCE]) == (8, 42, 8)
    assert (first[MetaField.STARTS], first[MetaField.FADES]) == (0, 1)
    assert (first[MetaField.OUT_FRAME], first[MetaField.EMITTED], first[MetaField.NEXT_FIRST]) == (5, 58, 50)
    assert (first[MetaField.KEY_LOW], first[MetaField.KEY_HIGH]) == (-1, 1)
    assert out[:2, MetaField.NEW_COLUMN].tolist() == [0, 50]  # new frames follow those of the previous row
    assert out[:2, MetaField.BEFORE].tolist() == [0, 66]  # and so do all its frames
    assert out[-1, :3].tolist() == [132 + 3 * FRAME_GAP, 8 * 132 + 3 * GAP, 120 * 132 + 3 * GAP]


@settings(max_examples=12, deadline=None)
@given(st.lists(st.integers(1, LONGEST), min_size=1, max_size=20), st.sampled_from(RATES))
def test_rows_keep_their_distance(lengths: list[int], rate: Rate) -> None:
    """Rows begin where the kernels expect them, and none is nearer to another, or to the ends, than its gap less the extra position."""
    begins = [rate.rate * sum(lengths[:row]) + (row + 1) * rate.gap for row in range(len(lengths))]
    ends = [begin + rate.rate * length + rate.extra for begin, length in zip(begins, lengths, strict=True)]
    behind = [*begins[1:], rate.positions(sum(lengths), len(lengths))]
    assert begins[0] == rate.gap
    assert all(after - end == rate.gap - rate.extra for end, after in zip(ends, behind, strict=True))


@settings(max_examples=10, deadline=None)
@given(st.sampled_from([1, 3, 7]), st.sampled_from([1, 3]), st.sampled_from([80, 128]), st.sampled_from([64, 192]))
def test_tiles_multiply_as_the_convolution(taps: int, dilation: int, channels: int, outputs: int) -> None:
    generator = torch.Generator().manual_seed(taps + dilation)
    weight = torch.randn(outputs, taps, channels, generator=generator)
    tiles = TileList(torch.float32, torch.device("cpu"))
    tiles.add(torch.randn(64, 1, 64, generator=generator), 1, 0)  # other tiles come first
    part = tiles.add(weight, dilation, (taps - 1) * dilation // 2)
    every = tiles.close().view(-1, SLICE, SLICE)
    torch.testing.assert_close(every[0], torch.eye(SLICE))
    x = torch.randn(23, channels, generator=generator)
    panels = -(-channels // SLICE)
    window = F.pad(x, (0, panels * SLICE - channels, part.pad, (taps - 1) * dilation - part.pad))
    found = torch.zeros(23, outputs)
    for block in range(outputs // SLICE):
        for panel in range(panels):
            for tap in range(part.taps):
                tile = every[part.first_tile + (block * panels + panel) * part.taps + tap]
                begin = tap % part.wrap * part.dilation
                read = window[begin : begin + 23, panel * SLICE : (panel + 1) * SLICE]
                found[:, block * SLICE : (block + 1) * SLICE] += read @ tile.T
    exact = F.conv1d(x.T[None], weight.transpose(1, 2), dilation=dilation, padding=part.pad)[0].T
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-3)


def test_a_weight_in_two_parts_loses_almost_nothing() -> None:
    conv = nn.Conv1d(64, 64, 3, padding=1)
    sums = split_sum(conv, torch.float16)
    (first, second), tiles = sums.groups[0], sums.tiles.view(-1, SLICE, SLICE).double()
    assert (first.taps, first.wrap, second.taps, second.wrap) == (6, 3, 3, 3)
    high, low = tiles[first.first_tile : first.first_tile + 3], tiles[first.first_tile + 3 : first.first_tile + 6]
    exact = conv.weight.detach().double().permute(2, 0, 1) * F0_SCALE
    torch.testing.assert_close(tiles[second.first_tile :], high, rtol=0, atol=0)
    torch.testing.assert_close(high + low, exact, rtol=2.0**-21, atol=2.0**-24)
    assert conv.bias is not None
    torch.testing.assert_close(sums.bias[0], conv.bias.detach() * F0_SCALE)


def test_transposed_convolutions_as_interleaved_convolutions() -> None:
    hift = HiFT(WIDE)
    hift.load_state_dict(fold_weight_norm(random_state(WIDE)))
    weights = pack_weights(hift, torch.float32)
    for stage, up in zip(weights.stages, hift.ups, strict=True):
        assert isinstance(up, nn.ConvTranspose1d)
        conv = stage.up
        x = torch.randn(1, conv.channels, 11, generator=torch.Generator().manual_seed(1))
        padded = F.pad(x, (conv.taps - 1, conv.taps - 1))  # positions before and after are zero
        rows = torch.stack([padded[0, :, q : q + conv.taps].flip(1) for q in range(12)])  # tap k reads position q - k
        out = torch.einsum("qck,okc->qo", rows, conv.weight).view(12 * conv.up, conv.features) + conv.bias
        found = out[conv.crop : conv.crop + 11 * conv.up].T
        torch.testing.assert_close(found, up(x)[0], rtol=0, atol=1e-4)


def test_every_field_has_its_own_number() -> None:
    assert max(MetaField) < META_NUMBERS and max(SegmentField) < SEGMENT_NUMBERS
    assert (MAX_RESIDUALS, MAX_ACTIVES) == (2, 3)  # they lie between two fields
