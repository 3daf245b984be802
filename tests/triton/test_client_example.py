"""``tests/client_example.py`` runs against a real server as its docstring says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import soundfile

from tests.client_example import WORDS
from tests.triton.conftest import PATIENCE_S, ROOT


def test_the_example_speaks_a_text_that_is_still_being_written(grpc_url: str, tmp_path: Path) -> None:
    command = [sys.executable, "tests/client_example.py", grpc_url, str(tmp_path / "out.wav")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    chunks = done.stdout.splitlines()
    assert len(chunks) > 1 and chunks[-1].endswith(f", {len(' '.join(WORDS)) + 1} characters spoken")
    assert soundfile.info(tmp_path / "out.wav").frames > 0
