"""``bistream serve``: becomes the keeper of the checkout, or says why it cannot. ``tests/triton/test_draining.py`` has the real server."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from bistream.commands import serve
from bistream.commands.main import main

ROOT = Path(__file__).resolve().parents[2]


def test_it_becomes_the_program_with_all_words(monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, words: became.append([path, *words]))
    main(["serve", "--direct", "--", "echo", "--x"])
    assert became == [[sys.executable, sys.executable, str(ROOT / "scripts/serve.py"), "--direct", "--", "echo", "--x"]]


def test_without_a_checkout_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve.main([], tmp_path) == 1
    printed = capsys.readouterr()
    assert not printed.out and printed.err.count("\n") == 1 and "run.sh serve" in printed.err
