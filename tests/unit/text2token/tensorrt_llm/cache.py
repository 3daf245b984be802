"""A model of TensorRT-LLM's KV cache managers, for tests: which prefixes a request finds, what a request leaves, what is displaced.

V1 (``kvCacheManager.cpp``, the default in 1.2) stores all but the last id of prompt and output when a request ends, a partial last block
too. V2 (``kv_cache_manager_v2.py``) stores the prompt alone. Both match full blocks, then a part of one; never a prompt's last id, whose
scores are needed. A partial block that nobody uses is taken over, any other is copied. Blocks that no request uses are displaced by
priority, then by age, leaves first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

Manager = Literal["v1", "v2"]


@dataclass(eq=False)
class Block:
    """A stored block: up to ``block_size`` ids after those of its ancestors."""

    ids: tuple[int, ...]
    parent: Block | None
    priority: int
    used_at: int
    children: dict[tuple[int, ...], Block] = field(default_factory=dict)
    users: int = 0


@dataclass
class Allocation:
    """What a running request holds: shared blocks of the tree and blocks of its own. cached: ids that it need not compute."""

    prompt: list[int]
    shared: list[Block]
    num_own: int
    cached: int


class Cache:
    def __init__(self, num_blocks: int, block_size: int, manager: Manager = "v1") -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.manager = manager
        self.num_displaced = 0
        self._root = Block((), None, 0, 0)
        self._num_owned = 0
        self._num_stored = 0
        self._time = 0

    def start(self, prompt: Sequence[int], max_tokens: int) -> Allocation | None:
        """Room for a whole request, or None: it has to wait (GUARANTEED_NO_EVICT)."""
        shared = self._match(prompt)
        for block in shared:
            block.users += 1
        num_own = -(-(len(prompt) + max_tokens) // self.block_size) - len(shared)
        cached = len(shared) * self.block_size
        partial, num_partial = self._partial(shared[-1] if shared else self._root, prompt[cached : len(prompt) - 1])
        if partial is not None and not partial.users and not partial.children:
            self._remove(partial)  # taken over in place
        if not self._make_room(num_own):
            for block in shared:
                block.users -= 1
            return None
        self._num_owned += num_own
        return Allocation(list(prompt), shared, num_own, cached + num_partial)

    def finish(self, allocation: Allocation, output: Sequence[int], priority: int) -> None:
        """Store what the manager keeps of a request, and free the rest. output: sampled ids, the stop id included."""
        self._num_owned -= allocation.num_own
        for block in allocation.shared:
            block.users -= 1
        whole = [*allocation.prompt, *output] if self.manager == "v1" else allocation.prompt
        kept = whole[:-1]
        parent = self._root
        for start in range(0, len(kept), self.block_size):
            ids = tuple(kept[start : start + self.block_size])
            self._time += 1
            known = parent.children.get(ids)
            if known is None:
                if not self._make_room(1, keep=parent):
                    return
                known = parent.children[ids] = Block(ids, parent, priority, self._time)
                self._num_stored += 1
            known.used_at, known.priority = self._time, priority
            parent = known

    def forget(self) -> None:
        """Displace everything that nobody uses."""
        while self._displace(None):
            pass

    @property
    def num_used(self) -> int:
        return self._num_owned + self._num_stored

    def _match(self, prompt: Sequence[int]) -> list[Block]:
        found: list[Block] = []
        parent = self._root
        size = self.block_size
        for start in range(0, len(prompt) - 1, size):
            block = parent.children.get(tuple(prompt[start : start + size]))
            if block is None or len(block.ids) < size or start + size > len(prompt) - 1:
                break
            found.append(block)
            parent = block
        return found

    def _partial(self, parent: Block, rest: Sequence[int]) -> tuple[Block | None, int]:
        best, most = None, 0
        for block in parent.children.values():
            common = 0
            for one, other in zip(block.ids, rest, strict=False):
                if one != other:
                    break
                common += 1
            if common > most:
                best, most = block, common
        return best, most

    def _stored(self, block: Block) -> Iterator[Block]:
        for child in block.children.values():
            yield child
            yield from self._stored(child)

    def _make_room(self, count: int, keep: Block | None = None) -> bool:
        while self.num_blocks - self.num_used < count:
            if not self._displace(keep):
                return False
        return True

    def _displace(self, keep: Block | None) -> bool:
        leaves = [block for block in self._stored(self._root) if not block.children and not block.users and block is not keep]
        if not leaves:
            return False
        self._remove(min(leaves, key=lambda block: (block.priority, block.used_at)))
        self.num_displaced += 1
        return True

    def _remove(self, block: Block) -> None:
        assert block.parent is not None
        del block.parent.children[block.ids]
        self._num_stored -= 1
