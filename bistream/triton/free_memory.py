"""Gives memory that the C library keeps after it was freed back to the system, now and then, in every model process.

Batches of ever other sizes leave holes between what lives long, and the C library keeps the pages of the holes: under storms of
sessions, on a CPU, the part of the heap that ``token2wav``'s worker uses grew from 123 to 209 MB while 69 to 77 MB of it were in use.
Blocks outside the heap (a small, fixed ``MALLOC_MMAP_THRESHOLD_``) leave no holes, but every large tensor then begins with page faults.
"""

from __future__ import annotations

import ctypes
import threading

RELEASE_INTERVAL_S = 60.0


def release_free_memory() -> bool:
    """Whether this C library can do it. Without the GIL; took 16 ms for 97 MB, during which other threads may wait for memory."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return False
    trim.argtypes = [ctypes.c_size_t]
    trim(0)
    return True


def release_free_memory_now_and_then(interval_s: float = RELEASE_INTERVAL_S) -> threading.Event:
    """In a thread of its own, until the event that is returned is set or the C library turns out to be another one."""
    stopped = threading.Event()

    def release() -> None:
        while not stopped.wait(interval_s) and release_free_memory():
            pass

    threading.Thread(target=release, name="bistream-free-memory", daemon=True).start()
    return stopped
