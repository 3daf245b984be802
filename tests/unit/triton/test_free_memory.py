"""Freed memory that the C library keeps is returned to the system. Runs in a separate process, whose memory nothing else changes."""

from __future__ import annotations

import subprocess
import sys

# Blocks too small for separate mappings; one in 50 stays allocated, so that shrinking the heap returns nothing.
CODE = """
import ctypes, sys, threading, time
from bistream.triton import free_memory

def resident_mb():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20

c = ctypes.CDLL(None)
c.malloc.restype, c.malloc.argtypes, c.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
c.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
blocks = [c.malloc(20000) for _ in range(5000)]
for block in blocks:
    c.memset(block, 1, 20000)
full = resident_mb()
for index, block in enumerate(blocks):
    if index % 50:
        c.free(block)
kept = resident_mb()
ACTION
print(full - kept, kept - resident_mb())
"""
NOW = "assert free_memory.release_free_memory()"
IN_THE_BACKGROUND = """
stopped = free_memory.release_free_memory_now_and_then(interval_s=0.01)
deadline = time.monotonic() + 120
while kept - resident_mb() < 80 and time.monotonic() < deadline:
    threading.Event().wait(0.01)
stopped.set()
"""


def given_back_mb(action: str) -> tuple[float, float]:
    """MB returned by free alone, and by the action."""
    result = subprocess.run([sys.executable, "-c", CODE.replace("ACTION", action)], capture_output=True, text=True, timeout=240, check=True)
    alone, after = result.stdout.split()
    return float(alone), float(after)


def test_free_pages_between_live_blocks_are_returned() -> None:
    for action in (NOW, IN_THE_BACKGROUND):
        alone, after = given_back_mb(action)
        assert alone < 5
        assert 80 < after < 96  # of 95.4 in blocks
