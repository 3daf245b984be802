"""What a call launches, seen from a machine without a GPU: can it be recorded as a graph?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

READ_BY_THE_HOST = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal")


class Launches(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The operations inside the block with their shapes and numbers, in order. A recorded graph repeats them as they are, so they must be
    the same whatever the call computes, and the host must not wait for a value: that is an ``AssertionError``."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in READ_BY_THE_HOST, f"{name} waits for the device"
        leaves = tree_leaves((args, dict(kwargs or {})))
        assert not (name == "index" and any(_is_mask(leaf) for leaf in leaves[1:])), "the result's shape depends on a mask"
        self.seen.append(" ".join([name, *(str(tuple(leaf.shape)) if isinstance(leaf, Tensor) else repr(leaf) for leaf in leaves)]))
        return func(*args, **(kwargs or {}))


def _is_mask(leaf: object) -> bool:
    return isinstance(leaf, Tensor) and leaf.dtype == torch.bool
