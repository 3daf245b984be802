"""Envelopes: everything arrives as it was sent, and nothing damaged is read."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from bistream.errors import InvalidInputError
from bistream.transport.envelope import Message, pack, unpack

NUMBERS = st.sampled_from([np.bool_, np.int32, np.int64, np.float32]).flatmap(
    lambda dtype: nps.arrays(dtype, nps.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
)
PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8), st.lists(st.integers(0, 9000), max_size=8)
)
VALUES = st.one_of(NUMBERS, st.binary(max_size=20), PLAIN)
MESSAGES = st.lists(
    st.builds(Message, st.integers(0, 2**40), st.dictionaries(st.text(max_size=5), VALUES, max_size=4), st.none() | st.text(max_size=20)),
    max_size=5,
)


@given(MESSAGES)
def test_messages_arrive_as_they_were_sent(messages: list[Message]) -> None:
    found = unpack(pack(messages))
    assert [(message.number, message.error, set(message.values)) for message in found] == [
        (message.number, message.error, set(message.values)) for message in messages
    ]
    for sent, got in zip(messages, found, strict=True):
        for name, value in sent.values.items():
            if isinstance(value, np.ndarray):
                assert got.values[name].dtype == value.dtype and got.values[name].shape == value.shape
                assert got.values[name].tobytes() == value.tobytes() and got.values[name].flags.aligned
            else:
                assert got.values[name] == value and type(got.values[name]) is type(value)


def test_text_of_a_clients_request_arrives_as_bytes_and_scalars_as_numbers() -> None:
    values = {"text": np.array([[b"Hi"]], object), "seed": np.int64(3), "ids": (1, 2)}
    (found,) = unpack(pack([Message(1, values)]))
    assert found.values == {"text": b"Hi", "seed": 3, "ids": [1, 2]}
    with pytest.raises(ValueError):
        pack([Message(1, {"text": np.array([[b"Hi", b"there"]], object)})])


@given(MESSAGES, st.data())
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
        '[["0",{},[],null,true]]', '[[0,[],[],null,true]]', '[[0,{},[],1,true]]', '[[0,{},[["x","FP32",[-1]]],null,true]]',
        '[[0,{},[["x","FP32",[1000000000000,1000000000000]]],null,true]]', '[[0,{},[["x","FP32",["1"]]],null,true]]',
        '[[0,{},[["x","FP64",[1]]],null,true]]', '[[0,{},[[1,"FP32",[0]]],null,true]]', '[[0,{},[["x","BYTES",[9]]],null,true]]',
    ],
)  # fmt: skip
def test_a_head_that_nobody_packs_is_refused(head: str) -> None:
    with pytest.raises(InvalidInputError, match="envelope"):
        unpack(struct.pack("<I", len(head)) + head.encode())
