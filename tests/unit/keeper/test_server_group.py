"""A group of servers and its proxy, or of a server and its interfaces: what is started again, what ends the group, how it drains."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.keeper.host import ServerError
from bistream.keeper.member_group import HURRIED_TIMEOUT_S, Member, MemberGroup, MemberPlan, spawn_member
from bistream.keeper.restart_policy import RestartLimits
from bistream.keeper.server_group import ServerGroup

DEADLINE_S = 120.0


@dataclass
class FakeProcess:
    """Ends at the SIGTERM whose number is ``ends_at``, with code 0."""

    pid: int
    ends_at: int = 1
    code: int | None = None
    signals: int = 0

    def poll(self) -> int | None:
        return self.code

    def wait(self, timeout: float | None = None) -> int:
        if self.code is None:
            raise subprocess.TimeoutExpired("fake", timeout or 0.0)
        return self.code

    def send_signal(self, sig: int) -> None:
        self.signals += sig == signal.SIGTERM
        if self.code is None and self.signals == self.ends_at:
            self.code = 0

    def kill(self) -> None:
        if self.code is None:
            self.code = -9


@dataclass
class World:
    """Time moves when the group pauses; then ``events`` happen, each at its time."""

    now: float = 0.0
    ends_at: int = 1
    started: dict[str, list[FakeProcess]] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)  # these end at once
    unready: set[str] = field(default_factory=set)
    events: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    changes: list[list[str]] = field(default_factory=list)

    def spawn(self, plan: MemberPlan) -> Any:
        one = FakeProcess(len(self.started) + 1, self.ends_at)
        if plan.name in self.broken:
            one.code = 1
        self.started.setdefault(plan.name, []).append(one)
        return one, lambda: f"{plan.name}: the reason."

    def pause(self, seconds: float) -> None:
        self.now += seconds
        assert self.now < 1000.0, "it never ends"
        due = [event for at, event in self.events if at <= self.now]
        self.events = [(at, event) for at, event in self.events if at > self.now]
        for event in due:
            event()

    def member(self, name: str, end_timeout_s: float = math.inf) -> Member:
        plan = MemberPlan(name, [name], lambda: name not in self.unready | self.broken, end_timeout_s=end_timeout_s)
        return Member(plan, None, self.spawn, lambda: self.now)

    def group(self, servers: int = 2) -> ServerGroup:
        members = [self.member(f"server {number}") for number in range(servers)]

        def note(ready: list[Member]) -> None:
            self.changes.append([member.plan.name for member in ready])

        return ServerGroup(members, self.member("envoy", 5.0), note, self.pause, lambda: self.now)

    def at(self, time_s: float, event: Callable[[], None]) -> None:
        self.events.append((time_s, event))

    def end(self, name: str, code: int) -> Callable[[], None]:
        def event() -> None:
            self.started[name][-1].code = code

        return event


def running(world: World) -> list[str]:
    return [name for name, processes in world.started.items() if processes[-1].code is None]


def test_a_server_that_dies_is_started_again_and_not_counted_meanwhile() -> None:
    world = World()
    group = world.group()
    states: list[str] = []

    def die() -> None:
        world.unready.add("server 1")
        world.end("server 1", -9)()

    world.at(5.0, die)
    world.at(6.0, lambda: states.append(group.state))
    world.at(20.0, world.unready.clear)
    world.at(30.0, group.stop)
    group.run()
    assert world.changes == [["server 0", "server 1"], ["server 0"], ["server 0", "server 1"], []]
    assert len(world.started["server 1"]) == 2 and len(world.started["server 0"]) == len(world.started["envoy"]) == 1
    assert states == ["1 of 2 servers take sessions. server 1 was killed by signal 9."]
    assert running(world) == []


def test_a_group_of_which_no_server_can_start_ends_with_the_reason() -> None:
    world = World(broken={"server 0", "server 1"})
    with pytest.raises(ServerError, match="No server has become ready; server 0 ended with exit code 1: server 0: the reason"):
        world.group().run()
    assert running(world) == []


def test_a_proxy_that_cannot_start_ends_the_group_before_any_server_starts() -> None:
    world = World(broken={"envoy"}, unready={"envoy"})
    with pytest.raises(ServerError, match="envoy ended with exit code 1: envoy: the reason"):
        world.group().run()
    assert list(world.started) == ["envoy"]


def test_without_its_proxy_the_group_takes_no_sessions_until_it_is_back() -> None:
    world = World()
    group = world.group()

    def crash() -> None:
        world.unready.add("envoy")
        world.end("envoy", -11)()

    world.at(5.0, crash)
    world.at(10.0, world.unready.clear)
    world.at(20.0, group.stop)
    group.run()
    assert world.changes == [["server 0", "server 1"], [], ["server 0", "server 1"], []]


def test_the_first_stop_drains_and_the_proxy_ends_last() -> None:
    world = World(ends_at=99)
    group = world.group()
    world.at(5.0, group.stop)
    order: list[list[str]] = []
    world.at(50.0, world.end("server 0", 0))
    world.at(51.0, lambda: order.append(running(world)))
    world.at(60.0, world.end("server 1", 0))
    group.run()
    assert order == [["envoy", "server 1"]] and running(world) == []
    assert [len(processes) for processes in world.started.values()] == [1, 1, 1]
    assert world.started["server 0"][0].signals == 1 and not group.is_ready


def test_a_server_that_is_killed_before_the_next_look_has_worked_and_what_it_left_does_not_make_its_successor_ready(tmp_path: Path) -> None:
    world, ready_file = World(), tmp_path / "ready.json"
    member = Member(MemberPlan("server 0", ["x"], ready_file), None, world.spawn, lambda: world.now)
    member.start()
    assert not member.is_ready
    ready_file.touch()
    world.end("server 0", -9)()
    member.look()
    assert not member.is_running and member.failure and not member.has_never_worked
    member.look()
    assert member.is_running and not member.is_ready


def test_a_real_process_is_followed_line_by_line(capfd: pytest.CaptureFixture[str]) -> None:
    code = "import os; print('one'); print(os.environ['MARK']); raise SystemExit('It is wrong.')"
    process, last_line = spawn_member(MemberPlan("server 3", [sys.executable, "-c", code], lambda: True, {"MARK": "two"}))
    assert process.wait(DEADLINE_S) == 1
    assert last_line() == "It is wrong."
    assert capfd.readouterr().err == "[server 3] one\n[server 3] two\n[server 3] It is wrong.\n"


# Members that end in order: the interfaces, then the server

FRONT, BACK = "interfaces", "server"
BOTH = (FRONT, BACK)
NEVER = 10**6  # signals


def make(world: World) -> MemberGroup:
    return MemberGroup([[world.member(FRONT)], [world.member(BACK)]], world.pause, lambda: world.now)


def starts(world: World) -> dict[str, int]:
    return {name: len(processes) for name, processes in world.started.items()}


@settings(max_examples=8)
@given(st.lists(st.tuples(st.sampled_from(BOTH), st.sampled_from([-9, -11, 0, 1])), max_size=8))
def test_each_death_starts_that_member_again_and_no_other(deaths: list[tuple[str, int]]) -> None:
    world = World()
    group = make(world)
    pause_s = RestartLimits.longest_delay_s + 1.0  # each when the one before has been answered, however slowly
    for number, (name, code) in enumerate(deaths):
        world.at(1.0 + number * pause_s, world.end(name, code))
    world.at(1.0 + len(deaths) * pause_s, group.stop)
    group.run()
    assert starts(world) == {name: 1 + sum(dead == name for dead, _ in deaths) for name in BOTH}
    assert running(world) == []


@pytest.mark.parametrize("name", BOTH)
def test_a_member_that_cannot_start_ends_all_with_its_reason_and_is_not_tried_again(name: str) -> None:
    world = World(ends_at=2, broken={name}, unready={name})
    with pytest.raises(ServerError, match=f"^{name} ended with exit code 1: {name}: the reason.$"):
        make(world).run()
    assert running(world) == [] and starts(world) == {FRONT: 1, BACK: 1}
    (other,) = set(BOTH) - {name}
    assert world.started[other][0].code == 0, "it was asked to end, at once"


def test_a_member_that_fails_later_is_never_given_up() -> None:
    world = World()
    group = make(world)

    def break_down() -> None:
        world.broken.add(BACK)
        world.end(BACK, 1)()

    world.at(1.0, break_down)
    world.at(800.0, world.broken.clear)
    world.at(900.0, group.stop)
    group.run()
    assert starts(world)[FRONT] == 1 and world.started[BACK][-1].code == 0


def test_what_later_members_need_is_kept_running_while_the_first_ones_drain() -> None:
    world = World(ends_at=NEVER)
    group = make(world)
    world.at(5.0, group.stop)
    world.at(10.0, world.end(BACK, -9))
    world.at(20.0, world.end(FRONT, 0))
    world.at(30.0, world.end(BACK, 0))
    group.run()
    assert starts(world) == {FRONT: 1, BACK: 2}


@pytest.mark.parametrize("ends_at", [2, NEVER])
def test_the_second_stop_ends_all_at_once(ends_at: int) -> None:
    world = World(ends_at=ends_at)
    group = make(world)
    world.at(5.0, group.stop)
    world.at(7.0, group.stop)
    group.run()
    assert running(world) == [] and starts(world) == {FRONT: 1, BACK: 1}
    assert world.now < (8.0 if ends_at == 2 else 8.0 + 2 * HURRIED_TIMEOUT_S)
