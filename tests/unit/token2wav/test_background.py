"""Who computes next, hops or the background: a simulation with its own clock, and the order of the background's work."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.token2wav.background import MAX_CREDIT_S, SHARE, Background, BackgroundShare, OfflineJob
from bistream.token2wav.hop_jobs import AudioSession, HopJob, Token2WavHop
from bistream.types import AudioOptions, FloatArray, VoicePrompt

VOICE = VoicePrompt("", np.zeros(0, np.int32), np.zeros((0, 80), np.float32), np.ones(192, np.float32))


@dataclass
class Simulation:
    """A worker with endless background work in steps of ``step_s``, and batches of hops of ``hop_s`` that arrive every ``every_s``."""

    step_s: float
    hop_s: float
    every_s: float
    has_background: bool = True
    now_s: float = 0.0
    background_s: float = 0.0
    waits_s: list[float] = field(default_factory=list)

    def run(self, until_s: float) -> None:
        share, arrivals = BackgroundShare(), 0
        while self.now_s < until_s:
            next_hop_s = arrivals * self.every_s
            hops_wait = next_hop_s <= self.now_s
            if self.has_background and share.is_due(hops_wait):
                self.now_s += self.step_s
                self.background_s += self.step_s
                share.step_took(self.step_s, hops_wait)
            elif hops_wait:
                self.waits_s.append(self.now_s - next_hop_s)
                arrivals += 1
                self.now_s += self.hop_s
                share.hops_took(self.hop_s)
            else:
                self.now_s = next_hop_s


STEP_S = st.floats(0.002, 0.2)
HOP_S = st.floats(0.02, 0.19)  # of 0.2 s on, the bound on the credit makes the share smaller


@given(step_s=STEP_S, hop_s=HOP_S, load=st.floats(1.0, 3.0))
def test_the_background_never_starves(step_s: float, hop_s: float, load: float) -> None:
    simulation = Simulation(step_s, hop_s, hop_s / load)
    simulation.run(200.0)
    assert simulation.background_s == pytest.approx(SHARE * simulation.now_s, rel=0.1)


@given(step_s=STEP_S, hop_s=HOP_S, load=st.floats(0.1, 0.7))
def test_below_capacity_no_hop_waits_longer_than_the_saved_credit_and_two_steps(step_s: float, hop_s: float, load: float) -> None:
    """One step runs when the hop arrives, the last one of the credit may begin just before it is used up."""
    simulation = Simulation(step_s, hop_s, hop_s / load)
    simulation.run(50.0)
    backlog_s = max(0.0, step_s + hop_s - simulation.every_s)  # a hop before it that was itself late
    assert max(simulation.waits_s) <= MAX_CREDIT_S + 2 * step_s + backlog_s + 1e-9
    assert simulation.background_s > 0.9 * (1 - load) * simulation.now_s - step_s


def utterance(name: str) -> OfflineJob:
    return OfflineJob([1], VOICE, AudioOptions(), 1.0, Future[FloatArray](), name)


def voice(name: str) -> HopJob:
    return HopJob(AudioSession(name, VOICE, AudioOptions(), 0.0), Token2WavHop(name, (1,), False, VOICE), True, 0.0, Future[FloatArray]())


@given(st.lists(st.sampled_from(["voice", "utterance", "turn", "done", "drop"]), max_size=40))
def test_nothing_is_lost_and_at_most_one_utterance_is_in_progress(operations: list[str]) -> None:
    background, expected = Background(), set[str]()
    for index, operation in enumerate(operations):
        name = f"{operation[0]}{index}"
        if operation == "voice":
            background.add_voice(voice(name))
            expected.add(name)
        elif operation == "utterance":
            background.add_utterance(utterance(name))
            expected.add(name)
        elif operation == "drop":
            expected -= {job.session_id or "" for job in background.drop_utterances()}
        elif (work := background.take()) is not None and operation == "turn":
            background.put_back(work)
        elif work is not None:
            background.remove(work)
            expected.discard((work.session_id or "") if isinstance(work, OfflineJob) else work.session.session_id)
    assert sum(name.startswith("u") for name in expected) == background.utterances
    seen: set[str] = set()
    while (work := background.take()) is not None:
        seen.add((work.session_id or "") if isinstance(work, OfflineJob) else work.session.session_id)
        background.remove(work)
    assert seen == expected
