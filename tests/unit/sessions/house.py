"""An orchestrator with fake models, used by all tests of this folder."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bistream.config import RuntimeConfig
from bistream.errors import BistreamError
from bistream.metrics.recorder import Recorder
from bistream.sessions.orchestrator import Orchestrator
from bistream.sessions.ports import BistreamRequest
from bistream.sessions.session import SessionState
from bistream.sessions.speaking import SessionRun
from tests.clock import ManualClock
from tests.formats import SAMPLES_PER_TOKEN
from tests.unit.sessions.fakes import WAIT_S, FakeModels, FakeSender

CONFIG = RuntimeConfig(max_sessions=4, max_text_chars=100, drain_timeout_s=0.0)


def house_with(**settings: Any) -> pytest.MarkDecorator:
    """For a test, or as ``pytestmark`` of a module: settings of the fixture ``house`` other than those of ``CONFIG``."""
    return pytest.mark.parametrize("house", [replace(CONFIG, **settings)], ids=[",".join(settings)], indirect=True)


class House:
    """An orchestrator with its fakes; time and the watcher advance only when the test moves them."""

    def __init__(self, config: RuntimeConfig = CONFIG, watched: bool = False) -> None:
        self.models = FakeModels()
        self.clock = ManualClock()
        self.recorder = Recorder()
        config = replace(config, condition_recordings=False)  # tests count the tokens of recordings, which are no speech
        self.orchestrator = Orchestrator(config, self.models.ports, self.clock, watched=watched, recorder=self.recorder)

    def send(self, request: BistreamRequest) -> FakeSender:
        """Returns when the orchestrator has taken it."""
        sender = FakeSender()
        self.orchestrator.handle(request, sender)
        self.orchestrator._loop.run(asyncio.sleep(0))
        return sender

    def refused(self, request: BistreamRequest) -> BistreamError:
        """The error of a request that is refused at once."""
        sender = self.send(request)
        assert len(sender.endings) == 1
        assert sender.endings[0] is not None
        return sender.endings[0]

    def run(self) -> SessionRun:
        """The only session."""
        (run,) = self.orchestrator._open.values()
        return run

    def wait_until(self, is_so: Callable[[], bool], what: str) -> None:
        for _ in range(int(WAIT_S / 0.005)):
            if is_so():
                return
            threading.Event().wait(0.005)
        raise AssertionError(what)

    def wait_receiving(self) -> None:
        """Until every session waits for text."""
        sessions = [run.session for run in list(self.orchestrator._open.values())]
        self.wait_until(lambda: all(session.state is SessionState.RECEIVING for session in sessions), "a session does not wait for text")

    def wait_waiting(self, sender: FakeSender) -> None:
        """Until the only session waits for the clock, or has ended."""
        runs = list(self.orchestrator._open.values())
        self.wait_until(lambda: all(run._pacing.wake_at is not None or run.session.has_ended for run in runs), "the speaker does not wait")
        if not runs:
            sender.wait()

    def wait_analyses(self, count: int) -> None:
        """Until so many recordings are analysed or wait for it."""
        analyses = self.orchestrator._services.voices._analyses
        self.wait_until(lambda: len(analyses) == count, f"never {count} analyses")

    def wait_open(self, count: int) -> None:
        self.wait_until(lambda: self.orchestrator.open_sessions == count, f"never {count} sessions")

    def wait_empty(self) -> None:
        self.wait_until(lambda: not self.orchestrator._open, "a session was not closed")
        assert self.models.held == 0


def tokens_of(text: str) -> int:
    return len(text) // 5 * 15 + 10


def assert_whole(sender: FakeSender, text: str) -> None:
    """All audio of the text, in order, without a gap, and reported as spoken at the end."""
    assert sender.wait() is None
    np.testing.assert_array_equal(sender.waveform, np.arange(tokens_of(text) * SAMPLES_PER_TOKEN, dtype=np.float32))
    assert [chunk.sequence_number for chunk in sender.chunks] == list(range(len(sender.chunks)))
    consumed = [chunk.text_consumed for chunk in sender.chunks]
    assert consumed == sorted(consumed)
    assert consumed[-1] == len(text)
    assert (sender.endings, sender.calls_after_end) == ([None], 0)
