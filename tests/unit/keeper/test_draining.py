"""The drain protocol between keeper and front models: no session is cut short, and the keeper never waits in vain."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import cast

import pytest

from bistream.keeper.served_models import CLOSING_S, TELLING_S, Ending
from bistream.processes.control_files import CONTROL_VARIABLE, Order, StatusFile, forget_process, read_statuses
from bistream.sessions.orchestrator import Orchestrator
from bistream.triton.front_model import FrontModel, follow_keeper
from bistream.triton.status_writer import StatusWriter

WAIT_S = 120.0


class FakeOrchestrator:
    """An orchestrator whose drain returns when the test lets it."""

    def __init__(self, running: int) -> None:
        self.open_sessions = running
        self.deadlines: list[float] = []
        self.ended = threading.Event()
        self.failures: list[tuple[str, float]] = []
        self.told = threading.Event()
        self.is_draining, self.is_telling = threading.Event(), threading.Event()

    def drain(self, deadline_s: float) -> None:
        self.deadlines.append(deadline_s)
        self.is_draining.set()
        assert self.ended.wait(WAIT_S)

    def fail(self, model: str, patience_s: float) -> None:
        self.failures.append((model, patience_s))
        self.is_telling.set()
        assert self.told.wait(WAIT_S)


def make_door(directory: Path, pid: int, sessions: FakeOrchestrator) -> FrontModel:
    door = FrontModel(directory, StatusWriter(StatusFile(directory, "door", pid)), cast(Orchestrator, sessions))
    door.look()
    return door


class House:
    """A keeper with front models; time advances only when the test moves it."""

    def __init__(self, directory: Path, *running: int) -> None:
        self.now = 100.0
        self.sessions = [FakeOrchestrator(count) for count in running]
        self.doors = [make_door(directory, number, sessions) for number, sessions in enumerate(self.sessions)]
        StatusWriter(StatusFile(directory, "no-front-model", 99))
        self.directory = directory

    def order(self, patience_s: float, failed: str | None = None) -> Ending:
        return Ending(self.directory, Order(patience_s, failed), lambda: self.now)

    def look(self) -> list[bool]:
        """What the doors say; what they have begun in threads of their own is under way afterwards."""
        seen = [door.look() for door in self.doors]
        for door, sessions in zip(self.doors, self.sessions, strict=True):
            assert door._drain is None or sessions.is_draining.wait(WAIT_S)
            assert door._failure is None or sessions.is_telling.wait(WAIT_S)
        return seen

    def end(self, number: int) -> None:
        """All sessions of this door end, and thereby its drain."""
        self.sessions[number].open_sessions = 0
        self.sessions[number].ended.set()
        drain = self.doors[number]._drain
        assert drain is not None
        drain.join(WAIT_S)

    def tell(self, number: int) -> None:
        """All sessions of this door have heard of the failure."""
        self.sessions[number].told.set()
        failure = self.doors[number]._failure
        assert failure is not None
        failure.join(WAIT_S)


def test_a_drain_is_over_when_every_door_has_reported_that_its_last_session_has_ended(tmp_path: Path) -> None:
    """Even a door without sessions may admit one at any moment; only the end of its drain rules that out."""
    house = House(tmp_path, 2, 0)
    assert house.look() == [False, False] and [sessions.deadlines for sessions in house.sessions] == [[], []]
    drain = house.order(30.0)
    assert not drain.is_over(), "no door has noticed yet"
    assert house.look() == [False, False]
    assert drain.sessions_left == 2 and not drain.is_over()
    house.end(0)
    assert house.look() == [True, False]
    assert drain.sessions_left == 0 and not drain.is_over()
    house.end(1)
    assert not drain.is_over(), "the door has not reported it yet"
    assert house.look() == [True, True] and drain.is_over()
    assert [sessions.deadlines for sessions in house.sessions] == [[30.0], [30.0]], "each door drains once"


@pytest.mark.parametrize(("failed", "more_s"), [(None, CLOSING_S), ("llm_bistream", TELLING_S)])
def test_a_door_that_never_answers_is_given_up_after_the_deadline(tmp_path: Path, failed: str | None, more_s: float) -> None:
    house = House(tmp_path, 1)
    ending = house.order(30.0, failed)
    house.now += 30.0
    assert not ending.is_over(), "sessions may still receive their last error"
    house.now += more_s
    assert ending.is_over()


def test_a_failure_is_over_when_every_door_has_told_its_sessions(tmp_path: Path) -> None:
    house = House(tmp_path, 2, 0)
    notice = house.order(5.0, "llm_bistream")
    assert house.look() == [False, False] and not notice.is_over()
    assert [sessions.failures for sessions in house.sessions] == [[("llm_bistream", 5.0)]] * 2
    house.tell(0)
    house.tell(1)
    assert not notice.is_over() and house.look() == [True, True] and notice.is_over()


def test_a_failure_ends_a_drain_that_is_under_way(tmp_path: Path) -> None:
    house = House(tmp_path, 1)
    drain = house.order(30.0)
    house.look()
    house.order(0.0, "token2wav")
    assert house.look() == [False] and house.sessions[0].failures == [("token2wav", 0.0)]
    house.tell(0)
    assert house.look() == [True] and drain.is_over()
    house.end(0)


def test_nobody_waits_for_the_door_of_a_dead_process(tmp_path: Path) -> None:
    house = House(tmp_path, 1)
    drain = house.order(30.0)
    forget_process(tmp_path, "door", 0)
    assert drain.is_over()


def test_a_model_finds_its_keeper_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CONTROL_VARIABLE, raising=False)
    follow_keeper(StatusWriter(None), cast(Orchestrator, FakeOrchestrator(0)))  # no keeper: nothing happens
    monkeypatch.setenv(CONTROL_VARIABLE, str(tmp_path))
    sessions, others = FakeOrchestrator(0), set(threading.enumerate())
    sessions.ended.set()
    follow_keeper(StatusWriter(StatusFile(tmp_path, "model", 1)), cast(Orchestrator, sessions))
    (follower,) = (thread for thread in set(threading.enumerate()) - others if thread.name == "bistream-front-model")
    ((_, status),) = read_statuses(tmp_path)
    assert status.sessions == 0 and not status.is_drained, "known to the keeper when the model has loaded"
    drain = Ending(tmp_path, Order(0.0))
    follower.join(WAIT_S)
    assert drain.is_over() and sessions.deadlines == [0.0]
