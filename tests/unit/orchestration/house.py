"""An orchestrator with fake models, used by all tests of this folder."""

from __future__ import annotations

import numpy as np

from bistream.config import RuntimeConfig
from bistream.errors import (
    BistreamError,
)
from bistream.orchestration.orchestrator import Orchestrator
from bistream.orchestration.ports import BistreamRequest
from bistream.orchestration.session import SessionState
from bistream.orchestration.speaking import SessionRun
from bistream.rates import SAMPLES_PER_TOKEN
from tests.unit.orchestration.fakes import (
    WAIT_S,
    FakeModels,
    FakeSender,
    ManualClock,
)

CONFIG = RuntimeConfig(max_sessions=4, max_text_chars=100, drain_timeout_s=0.0)


class House:
    """An orchestrator with its fakes; time and the watcher advance only when the test moves them."""

    def __init__(self, config: RuntimeConfig = CONFIG, watched: bool = False) -> None:
        self.models = FakeModels()
        self.clock = ManualClock()
        self.orchestrator = Orchestrator(config, self.models.ports, self.clock, watched=watched)

    def send(self, request: BistreamRequest) -> FakeSender:
        sender = FakeSender()
        self.orchestrator.handle(request, sender)
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

    def wait_receiving(self) -> None:
        session = self.run().session
        with session.condition:
            assert session.condition.wait_for(lambda: session.state is SessionState.RECEIVING, WAIT_S)

    def wait_waiting(self, sender: FakeSender) -> None:
        """Until the only session waits for the clock, or has ended."""
        runs = list(self.orchestrator._open.values())
        if not runs:
            sender.wait()
            return
        session = runs[0].session
        with session.condition:
            for _ in range(int(WAIT_S / 0.005)):  # nothing announces that the speaker waits
                if session.condition.wait_for(lambda: runs[0]._wake_at is not None or session.has_ended, 0.005):
                    return
        raise AssertionError("the speaker does not wait")

    def wait_empty(self) -> None:
        with self.orchestrator._changed:
            assert self.orchestrator._changed.wait_for(lambda: not self.orchestrator._open, WAIT_S), "a session was not closed"
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
