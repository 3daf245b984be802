"""Periodically returns freed memory that the C library retains to the system, in every model process.

Batches of varying size fragment the heap, and the C library retains the free pages between long-lived blocks: under bursts of
sessions, on a CPU, the malloc arena of ``token2wav``'s worker grew from 123 to 209 MB with 69 to 77 MB in use. Blocks outside the
heap (a small, fixed ``MALLOC_MMAP_THRESHOLD_``) do not fragment it, but then every large tensor starts with page faults.
"""

from __future__ import annotations

import ctypes
import threading

RELEASE_INTERVAL_S = 60.0


def release_free_memory() -> bool:
    """Whether this C library supports it. Runs without the GIL; took 16 ms for 97 MB, during which other threads may wait to allocate."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return False
    trim.argtypes = [ctypes.c_size_t]
    trim(0)
    return True


def release_free_memory_now_and_then(interval_s: float = RELEASE_INTERVAL_S) -> threading.Event:
    """Runs in its own thread until the returned event is set or the C library turns out not to support it."""
    stopped = threading.Event()

    def release() -> None:
        while not stopped.wait(interval_s) and release_free_memory():
            pass

    threading.Thread(target=release, name="bistream-free-memory", daemon=True).start()
    return stopped
