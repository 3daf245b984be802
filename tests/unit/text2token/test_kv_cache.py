"""All copies of blocks take place at once."""

from __future__ import annotations

import pytest
import torch

from bistream.text2token.kv_cache import PagedCache
from tests.unit.text2token.tiny import CONFIG

CPU = torch.device("cpu")


@pytest.mark.parametrize("pairs", [[(0, 1), (2, 0)], [(2, 0), (0, 1)], [(0, 1), (1, 0)]])
def test_the_source_of_a_copy_may_be_the_target_of_another(pairs: list[tuple[int, int]]) -> None:
    """A cached block may be evicted and reassigned between its match and the step that copies it."""
    cache = PagedCache(CONFIG, 4, 8, CPU, torch.float32)
    cache.blocks.copy_(torch.randint(0, 100, cache.blocks.shape))
    expected = cache.blocks.clone()
    for source, target in pairs:
        expected[:, :, target] = cache.blocks[:, :, source]
    cache.copy_blocks(pairs)
    assert torch.equal(cache.blocks, expected)
