"""Members that are restarted alone and end in order: the interfaces, then the server. Processes and clock are scripted."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.keeper.host import ServerError
from bistream.keeper.member_group import HURRIED_TIMEOUT_S, MemberGroup
from bistream.keeper.restart_policy import RestartLimits
from tests.unit.keeper.test_server_group import World, running

FRONT, BACK = "interfaces", "server"
BOTH = (FRONT, BACK)
NEVER = 10**6  # signals


def make(world: World) -> MemberGroup:
    return MemberGroup([[world.member(FRONT)], [world.member(BACK)]], world.pause, lambda: world.now)


def starts(world: World) -> dict[str, int]:
    return {name: len(processes) for name, processes in world.started.items()}


@settings(max_examples=40)
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


def test_the_first_stop_ends_one_after_the_other() -> None:
    world = World(ends_at=NEVER)
    group = make(world)
    world.at(5.0, group.stop)
    asked: list[tuple[int, int]] = []
    world.at(100.0, lambda: asked.append((world.started[FRONT][0].signals, world.started[BACK][0].signals)))
    world.at(101.0, world.end(FRONT, 0))
    world.at(200.0, lambda: asked.append((world.started[FRONT][0].signals, world.started[BACK][0].signals)))
    world.at(201.0, world.end(BACK, 0))
    group.run()
    assert asked == [(1, 0), (1, 1)] and starts(world) == {FRONT: 1, BACK: 1}


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
