"""A secret on the command line of a child is hidden from others; the rest of the line and the child stay as they are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bistream.keeper.model_control import hide_argument

SECRET = "0123456789abcdef" * 2
CODE = "import sys; print(sys.argv[1], flush=True); sys.stdin.read(); print(sys.argv[2])"


def test_a_secret_is_hidden_wherever_it_stands_and_the_child_goes_on() -> None:
    arguments = [sys.executable, "-c", CODE, f"--one=api:key={SECRET}", f"--two={SECRET}"]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == f"--one=api:key={SECRET}\n", "it has read its arguments"
        assert hide_argument(child.pid, SECRET)
        shown = Path(f"/proc/{child.pid}/cmdline").read_text(encoding="utf-8").split("\0")
        assert shown[3:5] == [f"--one=api:key={'x' * 32}", f"--two={'x' * 32}"] and shown[2] == CODE
        output, _ = child.communicate()
    assert output == f"--two={SECRET}\n" and child.returncode == 0


def test_a_process_that_is_gone_or_foreign_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        pass
    assert not hide_argument(child.pid, SECRET)
    assert "stays visible" in caplog.text
    assert hide_argument(os.getpid(), "a word that is not there")
