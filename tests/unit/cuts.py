"""A text in pieces, for tests of "the same however it is cut"."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

Text = TypeVar("Text", str, bytes, list[int])


def pieces_of(text: Text, cuts: Sequence[int]) -> list[Text]:
    """cuts: places in any order, modulo the length; equal ones make empty pieces."""
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[begin:end] for begin, end in pairwise(places)]
