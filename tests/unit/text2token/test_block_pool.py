"""Block pool: ownership, prefix sharing by content, eviction."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from bistream.text2token.block_pool import BlockPool, PrefixMatch, PrefixNode

SIZE = 4


def register_all(pool: BlockPool, blocks: list[int], ids: list[int]) -> None:
    node = None
    for index in range(0, len(ids), SIZE):
        node = pool.register(node, blocks[index // SIZE], ids[index : index + SIZE])
        if node is None:
            break


def take(pool: BlockPool, count: int) -> list[int]:
    blocks = pool.allocate(count)
    assert blocks is not None
    return blocks


def num_ids(match: PrefixMatch) -> int:
    return len(match.shared) * SIZE + match.num_partial


def test_match_finds_full_and_partial_blocks() -> None:
    pool = BlockPool(8, SIZE)
    ids = list(range(10))  # two full blocks and a partial one
    blocks = take(pool, 3)
    register_all(pool, blocks, ids)
    match = pool.match([*ids, 77, 78])
    assert [node.block for node in match.shared] == blocks[:2]
    assert match.partial is not None and (match.partial.block, match.num_partial) == (blocks[2], 2)
    diverging = pool.match([0, 1, 2, 3, 4, 5, 99, 7, 8])
    assert [node.block for node in diverging.shared] == blocks[:1]
    assert diverging.partial is not None and (diverging.partial.block, diverging.num_partial) == (blocks[1], 2)
    assert num_ids(pool.match([5, 6, 7, 8, 9])) == 0, "content counts from the start of the sequence"


def test_released_prefix_stays_until_space_is_needed() -> None:
    pool = BlockPool(4, SIZE)
    blocks = take(pool, 3)
    register_all(pool, blocks, list(range(12)))
    pool.release(blocks)
    assert (pool.num_available, pool.num_cached) == (4, 3)
    other = take(pool, 2)  # one free block, and the tail of the prefix
    assert num_ids(pool.match(list(range(20)))) == 8
    pool.check_integrity([other])
    more = take(pool, 2)
    assert num_ids(pool.match(list(range(20)))) == 0
    pool.check_integrity([other, more])


def test_evicting_a_parent_drops_its_unreachable_descendants() -> None:
    """A block in use below an evicted one stays owned, but is not cached on release."""
    pool = BlockPool(3, SIZE)
    first, second = take(pool, 1), take(pool, 1)
    parent = pool.register(None, first[0], [1, 2, 3, 4])
    assert pool.register(parent, second[0], [5, 6, 7, 8]) is not None
    pool.release(first)
    rest = take(pool, 2)  # needs the parent's block
    pool.check_integrity([second, rest])
    assert num_ids(pool.match([1, 2, 3, 4, 5, 6, 7, 8, 9])) == 0
    pool.release(second)
    assert pool.num_cached == 0
    pool.check_integrity([rest])
    assert pool.register(parent, rest[0], [5, 6, 7, 8]) is None, "the parent is gone"


@given(st.integers(0, 10**6), st.integers(4, 24))
def test_random_use_keeps_the_pool_consistent_and_the_content_right(seed: int, num_blocks: int) -> None:
    """Random sequences over a tiny alphabet: matched blocks really hold the matched content."""
    rng = random.Random(seed)
    pool = BlockPool(num_blocks, SIZE)
    content: dict[int, list[int]] = {}  # the content that the owner wrote, up to and including the block
    live: list[list[int]] = []
    for _ in range(60):
        if live and rng.random() < 0.4:
            pool.release(live.pop(rng.randrange(len(live))))
        ids = [rng.randrange(2) for _ in range(rng.randrange(1, 3 * SIZE))]
        blocks = pool.allocate(-(-len(ids) // SIZE) + rng.randrange(2))
        if blocks is None:
            continue
        match = pool.match(ids)
        for index, node in enumerate(match.shared):
            assert content[node.block] == ids[: (index + 1) * SIZE]
            pool.retain(node.block)
        if match.partial is not None:
            assert content[match.partial.block][: num_ids(match)] == ids[: num_ids(match)]
        pool.release(blocks[: len(match.shared)])
        blocks[: len(match.shared)] = [node.block for node in match.shared]
        live.append(blocks)
        for index in range(len(match.shared), -(-len(ids) // SIZE)):
            content[blocks[index]] = ids[: (index + 1) * SIZE]
        parent: PrefixNode | None = match.shared[-1] if match.shared else None
        for index in range(len(match.shared), -(-len(ids) // SIZE)):
            parent = pool.register(parent, blocks[index], ids[index * SIZE : (index + 1) * SIZE])
            if parent is None:
                break
        pool.check_integrity(live)
    for blocks in live:
        pool.release(blocks)
    pool.check_integrity([])
    assert pool.num_available == num_blocks
