"""Attention over the paged cache: of rows that decode, the same as of fed ones but for rounding, in any company with the same bits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.text2token.attention import attend_causal, attend_rows, plan_attention
from tests.unit.text2token.tiny import needs_invariance, num_threads

BLOCK, HEADS, KV_HEADS, HEAD_SIZE = 16, 4, 2, 16
CPU = torch.device("cpu")


def attend(sequences: list[tuple[torch.Tensor, torch.Tensor]], queries: torch.Tensor, decodes: bool) -> torch.Tensor:
    """Of each sequence's last position. sequences: keys and values, each [length, KV_HEADS, HEAD_SIZE]."""
    lengths = [len(keys) for keys, _ in sequences]
    blocks = torch.full((2, sum(-(-length // BLOCK) for length in lengths) + 1, BLOCK, KV_HEADS, HEAD_SIZE), torch.nan)
    tables: list[list[int]] = []
    free = list(range(1, blocks.shape[1]))[::-1]
    for keys_values in sequences:
        tables.append([free.pop() for _ in range(-(-len(keys_values[0]) // BLOCK))])
        for position in range(len(keys_values[0])):
            for kind in (0, 1):
                blocks[kind, tables[-1][position // BLOCK], position % BLOCK] = keys_values[kind][position]
    every = range(len(sequences)) if decodes else ()
    return attend_rows(queries, blocks, plan_attention([(length - 1, 1) for length in lengths], tables, BLOCK, CPU, every))


def sequence(length: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    keys, values = torch.randn((2, length, KV_HEADS, HEAD_SIZE), generator=torch.Generator().manual_seed(seed))
    return keys, values


@given(st.lists(st.integers(1, 70), min_size=1, max_size=4), st.booleans())
@settings(max_examples=10)
def test_rows_attend_to_their_own_sequence_and_to_nothing_behind_it(lengths: list[int], decodes: bool) -> None:
    sequences = [sequence(length, seed) for seed, length in enumerate(lengths)]
    queries = torch.randn((len(lengths), HEADS, HEAD_SIZE), generator=torch.Generator().manual_seed(9))
    found = attend(sequences, queries, decodes)
    for row, (keys, values) in enumerate(sequences):
        whole = attend_causal(queries[row].expand(len(keys), -1, -1), keys, values)[-1]
        torch.testing.assert_close(found[row], whole, rtol=0, atol=1e-5)  # weights of at most 1, of a softmax in float32


@needs_invariance
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("length", [1, 16, 130, 250, 300])
def test_a_row_that_decodes_has_the_same_bits_in_any_company(length: int, threads: int) -> None:
    """Where the library that computes longer chunks of a sum splits it by its length, and threads divide what there is."""
    queries = torch.randn((3, HEADS, HEAD_SIZE), generator=torch.Generator().manual_seed(9))
    with num_threads(threads):
        alone = attend([sequence(length, 0)], queries[:1], True)
        for others in ([7], [length + 1], [400, 512]):
            beside = attend([sequence(length, 0), *(sequence(other, other) for other in others)], queries[: 1 + len(others)], True)
            assert torch.equal(beside[:1], alone)
