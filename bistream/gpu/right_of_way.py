"""Lets urgent hops have a GPU to themselves, although the language model computes on it in another process.

Kernels of two processes that run at the same time slow each other down: a first hop that takes 11 ms alone takes 15 to 29 beside a language
model that runs ahead of listeners who have seconds of audio (docs/log.md). token2wav *claims* the GPU while hops are urgent; the language
model looks before each step for which nobody waits, and lets the claim pass.

A claim is a count in a file of shared memory, one for each GPU: odd while it is held, and another number with every batch. It is no lock:
nobody must heed it, whoever waits for it does so for ``PATIENCE_S`` at most before the next step, and one that does not change for
``STALE_S``, as that of a process that hangs, counts for nothing.
"""

from __future__ import annotations

import logging
import mmap
import os
import struct
from collections.abc import Callable
from pathlib import Path

import torch

from bistream.control_files import CONTROL_VARIABLE

_log = logging.getLogger(__name__)

PATIENCE_S = 0.02  # so where hops are always urgent there are still 50 steps a second, twice the pace of speech for every sequence
STALE_S = 1.0  # several long batches
_COUNT = struct.Struct("=Q")


class RightOfWay:
    """Of one GPU; in each process one that claims or one that looks. Raises ``OSError`` when its file cannot be opened."""

    def __init__(self, directory: Path, gpu: int) -> None:
        file = os.open(directory / f"gpu{gpu}.claim", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(file, _COUNT.size)
            self._memory = mmap.mmap(file, _COUNT.size)
        finally:
            os.close(file)

    @property
    def _count(self) -> int:
        return int(_COUNT.unpack_from(self._memory)[0])

    def claim(self) -> None:
        """Once for every batch with urgent hops."""
        _COUNT.pack_into(self._memory, 0, (self._count + 1) | 1)

    def release(self) -> None:
        """Idempotent."""
        _COUNT.pack_into(self._memory, 0, (self._count + 1) & ~1)

    @property
    def claimed(self) -> int | None:
        """The number of the claim that is held."""
        count = self._count
        return count if count % 2 else None

    def close(self) -> None:
        self._memory.close()


def right_of_way(device: torch.device) -> RightOfWay | None:
    """On the GPU that this process computes on; None on a CPU, and where the server has no keeper."""
    directory = os.environ.get(CONTROL_VARIABLE)
    if not directory or device.type != "cuda":
        return None
    try:
        return RightOfWay(Path(directory), device.index or 0)
    except OSError as error:
        _log.warning("language model and token2wav do not give way to each other: %s", error)
        return None


class Patience:
    """Whether work for which nobody waits should wait now. claimed: of a ``RightOfWay``."""

    def __init__(self, claimed: Callable[[], int | None]) -> None:
        self._claimed = claimed
        self._claim: int | None = None
        self._claim_since_s = 0.0
        self._waits_since_s: float | None = None

    def waits(self, now_s: float) -> bool:
        claim = self._claimed()
        if claim != self._claim:
            self._claim, self._claim_since_s = claim, now_s
        if claim is None or now_s - self._claim_since_s >= STALE_S:
            self._waits_since_s = None
            return False
        if self._waits_since_s is None:
            self._waits_since_s = now_s
        return now_s - self._waits_since_s < PATIENCE_S

    def worked(self) -> None:
        """A piece of work has been done."""
        self._waits_since_s = None
