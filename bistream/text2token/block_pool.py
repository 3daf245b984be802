"""Ownership of the blocks of the paged KV cache: plain integers, no tensors.

A block holds the keys and values of ``block_size`` consecutive positions of a sequence. ``BlockPool`` counts references;
its prefix cache finds, by their ids, blocks that a new sequence would otherwise compute again (the prompt of a voice).
Called by the scheduler only.

    state of a block     references   in prefix cache
    free                 0            no                on the free list
    owned                1            no                one sequence writes it
    owned, shareable     >= 1         yes               its registered positions are final and never written again
    cached               0            yes               kept for the next sequence, evicted (oldest first) when needed

Blocks form a tree in the prefix cache: the content of a block depends on its ids and on all ids before them, so a
node is found under its parent by exact comparison of ids (no hash collision can share a wrong block). Evicting a
node drops its descendants, which could no longer be found.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from os.path import commonprefix

MAX_SIBLINGS_COMPARED = 16  # children of a node that a partial match compares, newest first


@dataclass(eq=False)
class PrefixNode:
    """A cached block: ``ids`` are its registered positions (a full block, or fewer at the end of a prompt)."""

    block: int
    ids: tuple[int, ...]
    parent: PrefixNode | None
    children: dict[tuple[int, ...], PrefixNode] = field(default_factory=dict)


@dataclass(frozen=True)
class PrefixMatch:
    """The cached prefix of a sequence's ids.

    shared: full blocks to share. partial: one more block, whose first ``num_partial`` positions match; it must be
    copied, because the sequence will write after them.
    """

    shared: tuple[PrefixNode, ...]
    partial: PrefixNode | None
    num_partial: int


class BlockPool:
    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))
        self._references = [0] * num_blocks
        self._node_of: dict[int, PrefixNode] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()  # blocks without a reference, oldest first
        self._root = PrefixNode(-1, (), None)

    @property
    def num_available(self) -> int:
        """Blocks that ``allocate`` could hand out now."""
        return len(self._free) + len(self._cached)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    def allocate(self, count: int) -> list[int] | None:
        """Take ``count`` blocks, evicting cached ones if needed; ``None``, with none taken, when there are too few."""
        if count > self.num_available:
            return None
        while len(self._free) < count:
            self._forget(self._node_of[next(iter(self._cached))])
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            assert self._references[block] == 0
            self._references[block] = 1
        return taken

    def retain(self, block: int) -> None:
        """Add an owner to a block that is owned or cached."""
        assert self._references[block] > 0 or block in self._cached
        self._references[block] += 1
        self._cached.pop(block, None)

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference to each block of a sequence; a block without references becomes free or cached."""
        for block in reversed(blocks):  # the tail becomes the oldest: blocks are evicted before their parents
            assert self._references[block] > 0, f"block {block} is released twice"
            self._references[block] -= 1
            if self._references[block] > 0:
                continue
            if block in self._node_of:
                self._cached[block] = None
            else:
                self._free.append(block)

    def match(self, ids: Sequence[int]) -> PrefixMatch:
        """The longest cached prefix of ``ids`` that leaves at least one id to compute. Adds no reference."""
        limit = len(ids) - 1
        size = self.block_size
        node = self._root
        shared: list[PrefixNode] = []
        while (len(shared) + 1) * size <= limit:
            child = node.children.get(tuple(ids[len(shared) * size : (len(shared) + 1) * size]))
            if child is None:
                break
            shared.append(child)
            node = child
        rest = tuple(ids[len(shared) * size : min((len(shared) + 1) * size, limit)])
        partial, num_partial = self._partial(node, rest)
        return PrefixMatch(tuple(shared), partial, num_partial)

    def _partial(self, node: PrefixNode, rest: tuple[int, ...]) -> tuple[PrefixNode | None, int]:
        best: PrefixNode | None = None
        best_length = 0
        for count, child in enumerate(reversed(node.children.values())):
            if count == MAX_SIBLINGS_COMPARED or best_length == len(rest):
                break
            length = len(commonprefix([child.ids, rest]))
            if length > best_length:
                best, best_length = child, length
        return best, best_length

    def register(self, parent: PrefixNode | None, block: int, ids: Sequence[int]) -> PrefixNode | None:
        """Add an owned block to the prefix cache, now that the positions of ``ids`` are computed.

        Returns the parent node for the sequence's next block: the new node, or an equal one that exists already; ``None`` if
        the parent was dropped in the meantime, and for a partial block.
        """
        assert self._references[block] > 0 and 0 < len(ids) <= self.block_size
        node = self._root if parent is None else parent
        if parent is not None and self._node_of.get(parent.block) is not parent:
            return None
        key = tuple(ids)
        known = node.children.get(key)
        if known is None and block not in self._node_of:
            known = PrefixNode(block, key, node)
            node.children[key] = known
            self._node_of[block] = known
        return known if len(key) == self.block_size else None

    def forget(self, blocks: Iterable[int]) -> None:
        """Remove blocks with untrusted content from the prefix cache. Owners keep them."""
        for block in blocks:
            node = self._node_of.get(block)
            if node is not None:
                self._forget(node)

    def _forget(self, node: PrefixNode) -> None:
        assert node.parent is not None
        del node.parent.children[node.ids]
        stack = [node]
        while stack:
            dropped = stack.pop()
            stack.extend(dropped.children.values())
            dropped.children.clear()
            del self._node_of[dropped.block]
            if dropped.block in self._cached:
                del self._cached[dropped.block]
                self._free.append(dropped.block)

    def check_integrity(self, owned: Iterable[Sequence[int]]) -> None:
        """Raise ``AssertionError`` unless ``owned`` (one block list per live sequence), free and cached blocks make up the pool."""
        references = [0] * self.num_blocks
        for blocks in owned:
            for block in blocks:
                references[block] += 1
        assert references == self._references, "reference counts differ from the blocks that live sequences own"
        free = set(self._free)
        assert len(free) == len(self._free), "a block is on the free list twice"
        for block, count in enumerate(references):
            states = (count > 0) + (block in free) + (block in self._cached)
            assert states == 1, f"block {block} is in {states} states"
        for block, node in self._node_of.items():
            assert node.block == block and block not in free
            parent = node.parent
            assert parent is not None and parent.children.get(node.ids) is node, "the parent of a cached block was dropped"
            assert parent is self._root or self._node_of.get(parent.block) is parent
        assert set(self._cached) <= self._node_of.keys()
