"""Whole sequences: rows of a padded call are what each one is alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.bicodec.decoding import check_semantic, decode, padded_tokens, voice_of
from bistream.bicodec.signal import WholeSignals
from bistream.errors import InvalidInputError
from tests.unit.bicodec.tiny import codec, tokens, voice


@pytest.mark.parametrize("name", ["tiny", "resampled"])
@settings(max_examples=4)
@given(lengths=st.lists(st.integers(1, 60), min_size=2, max_size=4))
def test_padding_is_not_heard(name: str, lengths: list[int]) -> None:
    network = codec(name)
    sequences = [tokens(length, seed) for seed, length in enumerate(lengths)]
    voices = torch.stack([voice_of(network, voice(seed)) for seed in range(len(lengths))])
    made = network.audio(padded_tokens(sequences, max(lengths)), voices, WholeSignals(torch.tensor(lengths)))
    for seed, (row, semantic) in enumerate(zip(made.numpy(), sequences, strict=True)):
        alone = decode(network, [semantic], [voice(seed)])[0]
        np.testing.assert_allclose(row[: len(alone)], alone, rtol=0, atol=5e-5)


@settings(max_examples=4)
@given(st.lists(st.integers(0, 40), max_size=6))
def test_any_lengths_in_one_call(lengths: list[int]) -> None:
    sequences = [tokens(length, seed) for seed, length in enumerate(lengths)]
    audio = decode(codec(), sequences, [voice()] * len(lengths))
    assert [len(row) for row in audio] == [length * codec().config.samples_per_token for length in lengths]
    for row, semantic in zip(audio, sequences, strict=True):
        np.testing.assert_allclose(row, decode(codec(), [semantic], [voice()])[0], rtol=0, atol=5e-5)


def test_tokens_are_one_sequence_of_integers() -> None:
    with pytest.raises(InvalidInputError, match="send one sequence"):
        check_semantic(codec(), tokens(4)[None])
    with pytest.raises(InvalidInputError, match="send integers"):
        check_semantic(codec(), tokens(4).astype(np.float32))
