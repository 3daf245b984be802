"""The delivery pool: at least one round after every ``schedule``, never two rounds of one task at a time."""

from __future__ import annotations

import logging
import threading

import pytest

from bistream.orchestration.delivery import DeliveryPool

WAIT_S = 20.0


class Task:
    """Delivers posted items; notices when two threads are in it at once."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.posted = 0
        self.delivered = 0
        self.overlaps = 0
        self.inside = False

    def post(self) -> None:
        with self.lock:
            self.posted += 1

    def deliver(self) -> None:
        with self.lock:
            self.overlaps += self.inside
            self.inside = True
            due = self.posted
        with self.lock:
            self.delivered = due
            self.inside = False


def test_everything_is_delivered_and_never_by_two_threads_at_once() -> None:
    pool = DeliveryPool(4)
    tasks = [Task() for _ in range(5)]

    def post_many() -> None:
        for index in range(200):
            task = tasks[index % len(tasks)]
            task.post()
            pool.schedule(task)

    threads = [threading.Thread(target=post_many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    pool.close()
    assert [task.delivered for task in tasks] == [160] * 5
    assert [task.overlaps for task in tasks] == [0] * 5


class Blocking:
    def __init__(self) -> None:
        self.entered = threading.Event()
        self.released = threading.Event()

    def deliver(self) -> None:
        self.entered.set()
        assert self.released.wait(WAIT_S)


def test_a_slow_task_does_not_delay_another() -> None:
    pool = DeliveryPool(2)
    slow, other = Blocking(), Blocking()
    other.released.set()
    pool.schedule(slow)
    assert slow.entered.wait(WAIT_S)
    pool.schedule(slow)  # schedules another round, does not occupy the second thread
    pool.schedule(other)
    assert other.entered.wait(WAIT_S)
    slow.released.set()
    pool.close()


class Broken:
    def deliver(self) -> None:
        raise ValueError("bug")


def test_a_task_that_raises_does_not_stop_the_pool(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "bistream")
    pool = DeliveryPool(1)
    after = Task()
    after.post()
    pool.schedule(Broken())
    pool.schedule(after)
    pool.close()
    assert after.delivered == 1
