"""Envelopes: everything arrives as it was sent, and nothing damaged is read."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from bistream.contract.codec import text_array
from bistream.errors import InvalidInputError
from bistream.transport.envelope import Message, pack, unpack

NUMBERS = st.sampled_from([np.bool_, np.int32, np.int64, np.float32]).flatmap(
    lambda dtype: nps.arrays(dtype, nps.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
)
ARRAYS = st.one_of(NUMBERS, st.binary(max_size=20).map(text_array))
MESSAGES = st.lists(
    st.builds(Message, st.integers(0, 2**40), st.dictionaries(st.text(max_size=5), ARRAYS, max_size=4), st.none() | st.text(max_size=20)),
    max_size=5,
)


@given(MESSAGES)
@settings(max_examples=40, deadline=None)
def test_messages_arrive_as_they_were_sent(messages: list[Message]) -> None:
    found = unpack(pack(messages))
    assert [(message.number, message.error, list(message.arrays)) for message in found] == [
        (message.number, message.error, list(message.arrays)) for message in messages
    ]
    for sent, got in zip(messages, found, strict=True):
        for name, array in sent.arrays.items():
            assert got.arrays[name].dtype == array.dtype and got.arrays[name].shape == array.shape
            assert got.arrays[name].tobytes() == array.tobytes() or array.dtype == np.object_
            if array.dtype == np.object_:
                assert got.arrays[name].item() == array.item()
            assert got.arrays[name].flags.aligned


@given(MESSAGES, st.data())
@settings(max_examples=40, deadline=None)
def test_damage_is_refused_or_harmless(messages: list[Message], data: st.DataObject) -> None:
    packed = bytearray(pack(messages))
    if data.draw(st.booleans()):
        packed = packed[: data.draw(st.integers(0, len(packed)))]
    elif len(packed):
        packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        unpack(bytes(packed))
    except InvalidInputError:
        pass


@pytest.mark.parametrize(
    "head",
    [
        "null", "[1]", "[[0]]", "[" * 5000,
        '[["0",null,[]]]', '[[0,1,[]]]', '[[0,null,[["x","FP32",[-1]]]]]', '[[0,null,[["x","FP32",[1000000000000,1000000000000]]]]]',
        '[[0,null,[["x","FP32",["1"]]]]]', '[[0,null,[["x","FP64",[1]]]]]',
        '[[0,null,[["x","BYTES",[9]]]]]', '[[0,null,[["x","BYTES",[1,1]]]]]',
    ],
)  # fmt: skip
def test_a_head_that_nobody_packs_is_refused(head: str) -> None:
    with pytest.raises(InvalidInputError, match="envelope"):
        unpack(struct.pack("<I", len(head)) + head.encode())
