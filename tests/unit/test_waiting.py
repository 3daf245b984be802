"""The line that shows how long a start takes: on a terminal alone, and gone when it is over."""

from __future__ import annotations

import io
import sys
import threading

import pytest

from bistream.commands import waiting as _waiting
from bistream.commands.waiting import Waiting


class Terminal(io.StringIO):
    """shown: set by the first line with time on it."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal
        self.shown = threading.Event()

    def isatty(self) -> bool:
        return self._is_terminal

    def write(self, text: str) -> int:
        if "00:" in text:
            self.shown.set()
        return super().write(text)


def test_a_terminal_shows_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(_waiting, "DELAY_S", 0.0)
    monkeypatch.setattr(_waiting, "INTERVAL_S", 0.01)
    waiting = Waiting("the server starts")
    assert terminal.shown.wait(240)
    waiting.done()
    waiting.done()
    assert "the server starts [00:" in terminal.getvalue()
    assert not terminal.getvalue().rsplit("\r", 1)[-1].strip(), "the line is cleared"


def test_the_next_step_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(_waiting, "DELAY_S", 0.0)
    monkeypatch.setattr(_waiting, "INTERVAL_S", 0.01)
    with Waiting("1 of 2") as waiting:
        assert terminal.shown.wait(240)
        terminal.shown.clear()
        waiting.goes_on("2 of 2")
        while "2 of 2 [00:" not in terminal.getvalue():
            assert terminal.shown.wait(240)
            terminal.shown.clear()


def test_a_file_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(False)
    monkeypatch.setattr(sys, "stderr", terminal)
    Waiting("the server starts").done()
    assert terminal.getvalue() == ""
