"""Lets urgent work have a GPU to itself, although two processes compute on it: the language model and token2wav.

Kernels of two processes that run at the same time slow each other down: a step of the language model takes 1.4 ms instead of 0.6 beside
token2wav, and a batch of 11 hops 33 ms instead of 22 (docs/log), more than if they took turns. So each of them *claims* the GPU while
somebody waits for its work, and before work for which nobody waits it looks at the other's claim, which it lets pass.

A claim is a count in a file of shared memory, one for each GPU and kind of work: odd while it is held, and another number with every
piece of the work. It is no lock: nobody must heed it, whoever waits for it does so only as long as its patience lasts, and one that does
not change for ``STALE_S``, as that of a process that hangs, counts for nothing.
"""

from __future__ import annotations

import logging
import mmap
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bistream.processes.control_files import CONTROL_VARIABLE

if TYPE_CHECKING:
    import torch

_log = logging.getLogger(__name__)

HOPS, TOKENS = "hops", "tokens"  # the work of token2wav and of the language model
# Before the next step. So where the other's work is always urgent there are still 50 steps of the language model a second, twice the pace
# of speech for every sequence, and token2wav has a third to half of the time for calm batches, whose steps take 5 to 9 ms.
PATIENCE_S = {TOKENS: 0.02, HOPS: 0.01}
LOOK_S = 0.0005  # between two looks at a claim
STALE_S = 1.0  # several long batches
_COUNT = struct.Struct("=Q")


class Claim:
    """On one GPU, for one kind of work. One process claims, another looks. Raises ``OSError`` when the file cannot be opened."""

    def __init__(self, directory: Path, gpu: int, work: str) -> None:
        file = os.open(directory / f"gpu{gpu}.{work}.claim", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(file, 0, _COUNT.size)  # without its page, a claim where shared memory is full would end the process (SIGBUS)
            self._memory = mmap.mmap(file, _COUNT.size)
        finally:
            os.close(file)

    @property
    def _count(self) -> int:
        return int(_COUNT.unpack_from(self._memory)[0])

    def claim(self) -> None:
        """Once for every piece of urgent work."""
        _COUNT.pack_into(self._memory, 0, (self._count + 1) | 1)

    def release(self) -> None:
        """Idempotent."""
        _COUNT.pack_into(self._memory, 0, (self._count + 1) & ~1)

    @property
    def held(self) -> int | None:
        """The number of the claim that is held."""
        count = self._count
        return count if count % 2 else None

    def close(self) -> None:
        self._memory.close()


class Patience:
    """Whether work for which nobody waits should wait now. claimed: the number of the claim that is held; longest_s: of one wait."""

    def __init__(self, claimed: Callable[[], float | None], longest_s: float) -> None:
        self._claimed = claimed
        self._longest_s = longest_s
        self._claim: float | None = None
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
        return now_s - self._waits_since_s < self._longest_s

    def works(self) -> None:
        """A piece of it begins."""
        self._waits_since_s = None


class GpuClaims:
    """One process's part. This one, for a processor that it shares with nobody, claims nothing and never waits."""

    def claim(self) -> None:
        """Somebody waits for a piece of work of this process that begins now."""

    def release(self) -> None:
        """Nobody does. Idempotent."""

    def waits(self, now_s: float) -> bool:
        """Whether work for which nobody waits should wait now."""
        return False

    def works(self) -> None:
        """A piece of work begins, which waited or not."""

    def close(self) -> None:
        """Releases the claim. Idempotent."""


class SharedGpu(GpuClaims):
    """mine: the claim of this process; theirs: the other's, for which one thread waits for ``longest_s`` at a time."""

    def __init__(self, mine: Claim, theirs: Claim, longest_s: float) -> None:
        self._mine, self._theirs = mine, theirs
        self._patience = Patience(lambda: theirs.held, longest_s)
        self._is_closed = False

    def claim(self) -> None:
        self._mine.claim()

    def release(self) -> None:
        self._mine.release()

    def waits(self, now_s: float) -> bool:
        return self._patience.waits(now_s)

    def works(self) -> None:
        self._patience.works()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._mine.release()
        self._mine.close()
        self._theirs.close()


def gpu_claims(device: torch.device, work: str) -> GpuClaims:
    """Of ``HOPS`` or ``TOKENS`` on the GPU that this process computes on. On a CPU, and without a keeper, nothing is shared."""
    directory = os.environ.get(CONTROL_VARIABLE)
    if not directory or device.type != "cuda":
        return GpuClaims()
    others = TOKENS if work == HOPS else HOPS
    try:
        mine, theirs = (Claim(Path(directory), device.index or 0, each) for each in (work, others))
    except OSError as error:
        _log.warning("language model and token2wav do not give way to each other: %s", error)
        return GpuClaims()
    return SharedGpu(mine, theirs, PATIENCE_S[work])
