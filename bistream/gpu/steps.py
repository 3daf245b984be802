"""Long computations in steps: a generator that yields where other work may run, and returns the result at its end.

Whoever drives such a generator decides when it goes on (``token2wav.service``); ``finish`` runs it without a pause.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]


def finish(steps: Steps[T]) -> T:
    """The result, without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def tiles(length: int, size: int) -> Iterator[slice]:
    """``range(length)`` in pieces of ``size``; one empty piece for length 0."""
    for begin in range(0, max(length, 1), size):
        yield slice(begin, min(length, begin + size))
