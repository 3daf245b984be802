"""Slow work of one key stays in order, and nobody else waits for it."""

from __future__ import annotations

import threading
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.triton.ordered_work import OrderedWork

WAIT_S = 120.0


def wait_for(event: threading.Event) -> None:
    assert event.wait(WAIT_S)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 4))
def test_the_work_of_a_key_is_done_in_order_and_all_of_it(keys: list[int], threads: int) -> None:
    done: list[tuple[int, int]] = []
    work = OrderedWork(threads, "test")
    for number, key in enumerate(keys):
        work.submit(str(key), lambda key=key, number=number: done.append((key, number)))  # type: ignore[misc]
    work.close()
    assert sorted(done, key=lambda one: one[1]) == [(key, number) for number, key in enumerate(keys)]
    for key in set(keys):
        mine = [number for one, number in done if one == key]
        assert mine == sorted(mine)
    assert not any(work.is_busy(str(key)) for key in keys)


def test_other_keys_do_not_wait() -> None:
    work, go_on, other = OrderedWork(2, "test"), threading.Event(), threading.Event()
    work.submit("slow", partial(wait_for, go_on))
    work.submit("slow", lambda: None)
    assert work.is_busy("slow") and not work.is_busy("other")
    work.submit("other", other.set)
    assert other.wait(WAIT_S) and work.is_busy("slow")
    go_on.set()
    work.close()
    assert not work.is_busy("slow")


def test_more_keys_than_threads_take_turns() -> None:
    work, done, go_on = OrderedWork(1, "test"), [], threading.Event()
    work.submit("first", partial(wait_for, go_on))
    for key in ("a", "b"):
        for _ in range(3):
            work.submit(key, lambda key=key: done.append(key))  # type: ignore[misc]
    go_on.set()
    work.close()
    assert done == ["a", "b"] * 3


def test_after_the_end_nothing_is_taken() -> None:
    work = OrderedWork(1, "test")
    work.close()
    work.close()
    with pytest.raises(RuntimeError):
        work.submit("a", lambda: None)
    assert not work.is_busy("a")
