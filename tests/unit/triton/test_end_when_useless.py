"""A model process that can compute nothing more ends itself, after its last messages; a healthy one stays."""

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
threading.Event().wait(30)
print("still here", flush=True)
"""


def test_an_unhealthy_process_ends_itself() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "open\n"
    assert process.poll() is None
    out, err = process.communicate("\n", timeout=20)
    assert process.returncode == 1
    assert out == ""
    assert "can compute nothing more" in err
