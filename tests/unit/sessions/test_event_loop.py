"""The event loop in its thread: calls in order, results, failures, and an end that waits for nobody for ever."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator

import pytest

from bistream.sessions.event_loop import EventLoop

WAIT_S = 120.0


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    loop = EventLoop("test-loop")
    yield loop
    loop.close()
    assert not loop._thread.is_alive()


async def nothing() -> None:
    pass


def test_a_task_that_fails_is_logged_and_stops_nothing(loop: EventLoop, caplog: pytest.LogCaptureFixture) -> None:
    done = threading.Event()

    async def fail() -> None:
        raise ValueError("a bug")

    async def work() -> None:
        done.set()

    for task in (fail, work):
        loop.call(lambda task=task: loop.start_task(task()))
    assert done.wait(WAIT_S)
    loop.run(nothing())
    assert any(record.exc_info and "a bug" in str(record.exc_info[1]) for record in caplog.records)


def test_closing_ends_whoever_waits(caplog: pytest.LogCaptureFixture) -> None:
    """A session whose model never answers, and a thread that waits for the loop."""
    caplog.set_level(logging.CRITICAL, "bistream")
    loop, ended, began = EventLoop("test-loop"), threading.Event(), threading.Event()

    async def wait_for_ever() -> None:
        began.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    results: list[object] = []
    waiting = threading.Thread(target=lambda: results.append(loop.run(wait_for_ever())))
    waiting.start()
    assert began.wait(WAIT_S)
    loop.close()
    waiting.join(WAIT_S)
    assert results == [None] and ended.is_set()
    loop.close()
