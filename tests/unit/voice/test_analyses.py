"""Analyses of recordings: each is made once for all who wait, few at a time, boundedly many, and none for nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.errors import BusyError, EngineError
from bistream.types import VoicePrompt
from bistream.voice.analyses import ANALYSIS_THREADS, FAST_ANALYSIS_THREADS, FAST_S, Analyses, Analysis, smoothed, threads_at_a_time
from tests.unit.voice.voices import random_voice

WAIT_S = 120.0


class Studio:
    """Builds voices while its gate is open, and counts them."""

    def __init__(self, most: int = 8) -> None:
        self.analyses = Analyses(most)
        self.gate = threading.Event()
        self.begun: list[str] = []
        self.changed = threading.Condition()
        self.voice = random_voice()

    def request(self, key: str) -> Analysis[VoicePrompt]:
        return self.analyses.request(key, self._builder(key))

    def _builder(self, key: str) -> Callable[[], VoicePrompt]:
        def build() -> VoicePrompt:
            with self.changed:
                self.begun.append(key)
                self.changed.notify_all()
            assert self.gate.wait(WAIT_S)
            if key == "bad":
                raise EngineError("no")
            return self.voice

        return build

    def wait_begun(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.begun) == count, WAIT_S)


def test_one_analysis_for_all_who_wait() -> None:
    studio = Studio()
    analyses = [studio.request("a") for _ in range(5)]
    studio.wait_begun(1)
    analyses.append(studio.request("a"))
    studio.gate.set()
    assert {id(analysis) for analysis in analyses} == {id(analyses[0])}
    assert analyses[0].future.result(WAIT_S) is studio.voice
    assert studio.begun == ["a"]
    assert studio.analyses.close(WAIT_S)


def test_few_at_a_time_in_order_and_too_many_are_refused() -> None:
    studio = Studio(most=4)
    waiting = [studio.request(key) for key in "abcd"]
    studio.wait_begun(ANALYSIS_THREADS)
    assert len(studio.analyses) == 4
    with pytest.raises(BusyError, match="4 recordings"):
        studio.request("e")
    assert studio.request("d") is waiting[3]
    studio.gate.set()
    assert all(analysis.future.result(WAIT_S) is studio.voice for analysis in waiting)
    assert sorted(studio.begun[:2]) == ["a", "b"] and sorted(studio.begun) == list("abcd")
    assert studio.request("e").future.result(WAIT_S) is studio.voice
    assert studio.analyses.close(WAIT_S)


@given(st.lists(st.floats(0.0, 10.0), min_size=1, max_size=30))
def test_how_many_at_a_time_follows_from_their_time(durations_s: list[float]) -> None:
    usual_s: float | None = None
    assert threads_at_a_time(usual_s) == ANALYSIS_THREADS, "nothing is known yet"
    for duration_s in durations_s:
        usual_s = smoothed(usual_s, duration_s)
        assert min(durations_s) - 1e-9 <= usual_s <= max(durations_s) + 1e-9
    assert usual_s is not None
    assert (threads_at_a_time(usual_s) == FAST_ANALYSIS_THREADS) is (usual_s < FAST_S)


def test_close_drops_what_waits_and_tells_whether_something_still_runs() -> None:
    studio = Studio()
    for key in "abc":
        studio.request(key)
    studio.wait_begun(2)
    assert not studio.analyses.close(0.0)
    studio.gate.set()
    assert studio.analyses.close(WAIT_S)
    assert sorted(studio.begun) == ["a", "b"]


def test_without_a_thread_the_session_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    studio = Studio()

    def refuse(*_: object, **__: object) -> threading.Thread:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr("bistream.voice.analyses.threading.Thread", refuse)
        with pytest.raises(BusyError, match="thread"):
            studio.request("a")
    studio.gate.set()
    assert studio.request("a").future.result(WAIT_S) is studio.voice
    assert studio.analyses.close(WAIT_S)


@settings(max_examples=15)
@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans()), max_size=20))
def test_whatever_is_abandoned_all_others_get_their_voice(requests: list[tuple[str, bool]]) -> None:
    studio, kept = Studio(most=6), []
    for key, is_abandoned in requests:
        analysis = studio.request(key)
        if is_abandoned:
            studio.analyses.abandon(analysis)
        else:
            kept.append(analysis)
    studio.gate.set()
    assert all(analysis.future.result(WAIT_S) is studio.voice for analysis in kept)
    assert studio.analyses.close(WAIT_S)
    assert len(studio.analyses) == 0
