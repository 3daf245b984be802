"""A model process that can no longer compute ends itself, after its last messages; a healthy one stays."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import logging, sys, threading
from bistream.triton.startup import end_when_useless
logging.basicConfig()
broken = threading.Event()
end_when_useless(lambda: not broken.is_set(), interval_s=0.05)
print("open", flush=True)
sys.stdin.readline()
broken.set()
threading.Event().wait(600)
print("still here", flush=True)
"""


def test_an_unhealthy_process_ends_itself() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "open\n"
    assert process.poll() is None
    out, err = process.communicate("\n", timeout=240)
    assert process.returncode == 1
    assert out == ""
    assert "can no longer compute" in err


def test_a_process_stuck_with_the_gil_ends_itself() -> None:
    """``PyDLL`` keeps the GIL while it calls; no other Python thread can run."""
    code = (
        "import ctypes\n"
        "from bistream.triton.startup import end_when_useless\n"
        "end_when_useless(lambda: True, interval_s=0.05, stuck_after_s=1.0)\n"
        "ctypes.PyDLL(None).sleep(600)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert result.returncode == 1
    assert "Timeout" in result.stderr and "most recent call first" in result.stderr
