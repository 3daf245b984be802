"""Which recordings go through a network in one call. Pure: lengths in, groups of positions out."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from enum import Enum

MOST = 8  # recordings in one call


class Batching(Enum):
    """PADDED: of any lengths, with zeros after the shorter ones. EQUAL: of one length. ALONE: one recording in each call."""

    PADDED = "padded"
    EQUAL = "of equal length"
    ALONE = "alone"


def groups(lengths: Sequence[int], batching: Batching, most: int = MOST) -> list[list[int]]:
    """Every position once, at most ``most`` in a group. Neighbours in length share a group, so that little of it is padding."""
    order = sorted(range(len(lengths)), key=lambda position: lengths[position])
    if batching is Batching.ALONE:
        return [[position] for position in order]
    if batching is Batching.PADDED:
        return _pieces(order, most)
    runs = itertools.groupby(order, key=lambda position: lengths[position])
    return [piece for _, run in runs for piece in _pieces(list(run), most)]


def _pieces(positions: list[int], most: int) -> list[list[int]]:
    return [positions[start : start + most] for start in range(0, len(positions), most)]
