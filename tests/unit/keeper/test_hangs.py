"""Hanging processes are killed, a hanging server is reported, and the keeper says early what it sees."""

from __future__ import annotations

import os
import signal
from typing import cast

import pytest

from bistream.keeper.hang_watch import HANG_TIMEOUT_S, Sign
from bistream.keeper.hangs import WARN_AFTER_S, Hangs
from bistream.keeper.served_models import ModelProcess
from bistream.keeper.server_process import TritonServer

PROCESS, OTHER = ModelProcess(7, "token2wav"), ModelProcess(8, "llm_bistream")


class FakeServer:
    """No server answers at its address; ``answered`` is what its keeper has counted."""

    pid = os.getpid()
    http_url = "127.0.0.1:1"

    def __init__(self) -> None:
        self.seen: dict[ModelProcess, Sign] = {}
        self.now = 0.0
        self.killed: list[tuple[int, int]] = []
        server = cast(TritonServer, self)
        self.hangs = Hangs(server, HANG_TIMEOUT_S, clock=lambda: self.now, kill=lambda pid, number: self.killed.append((pid, number)))
        self.hangs._answers.stop()

    @property
    def models(self) -> FakeServer:
        return self

    def signs(self) -> dict[ModelProcess, Sign]:
        return self.seen

    def pass_time(self, seconds: float, answers: bool = True) -> list[str]:
        """One look per second; what they return."""
        reasons = []
        for _ in range(round(seconds)):
            self.now += 1.0
            self.hangs._answers.count += answers
            self.seen = {process: Sign(int(self.now) if process == OTHER else 1) for process in (PROCESS, OTHER)}
            reasons.append(self.hangs.look())
        return [reason for reason in reasons if reason is not None]


def test_a_silent_model_process_is_killed_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    server = FakeServer()
    assert server.pass_time(WARN_AFTER_S + 2.0) == [] and server.killed == []
    assert len(caplog.messages) == 1 and "token2wav" in caplog.messages[0] and "llm_bistream" not in caplog.messages[0]
    assert server.pass_time(HANG_TIMEOUT_S - WARN_AFTER_S - 1.0) == []
    assert server.killed == [(PROCESS.pid, signal.SIGKILL)]


def test_a_server_that_does_not_answer_is_reported() -> None:
    server = FakeServer()
    reasons = server.pass_time(HANG_TIMEOUT_S + 2.0, answers=False)
    assert reasons and "The server has not answered" in reasons[0]


def test_a_process_that_is_gone_before_it_could_be_killed_is_no_error() -> None:
    server = FakeServer()

    def gone(pid: int, number: int) -> None:
        raise ProcessLookupError

    server.hangs._kill = gone
    assert server.pass_time(HANG_TIMEOUT_S + 2.0) == []
