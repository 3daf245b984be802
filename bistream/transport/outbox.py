"""The one thread of a front model that sends responses: each waits for the server, and a batch of hops brings sixty at once."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_FIRST, _NORMAL, _END = range(3)


class Outbox(Executor):
    """Calls functions one at a time: those whose listener hears nothing yet before others, else in order of arrival."""

    def __init__(self, name: str) -> None:
        """name: of the thread."""
        self._calls: queue.PriorityQueue[tuple[int, int, Callable[[], None]]] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def submit(self, function: Callable[Arguments, Result], /, *arguments: Arguments.args, **named: Arguments.kwargs) -> Future[Result]:
        """Raises ``RuntimeError`` after ``shutdown``."""
        return self._put(_NORMAL, lambda: function(*arguments, **named))

    def submit_first(self, function: Callable[..., Result], /, *arguments: Any) -> Future[Result]:
        """Before everything that is not first itself. Raises ``RuntimeError`` after ``shutdown``."""
        return self._put(_FIRST, lambda: function(*arguments))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """What was submitted is still called, cancel_futures or not. Idempotent."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._calls.put((_END, next(self._numbers), lambda: None))
        if wait:
            self._thread.join()

    def _put(self, priority: int, function: Callable[[], Result]) -> Future[Result]:
        future: Future[Result] = Future()
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the outbox is closed")
            self._calls.put((priority, next(self._numbers), lambda: _settle(future, function)))
        return future

    def _serve(self) -> None:
        while True:
            priority, _, call = self._calls.get()
            if priority == _END:
                return
            call()
            del call  # it refers to a response, which must not live until the next one


def _settle(future: Future[Any], function: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
    finally:
        del future, function  # an error refers to this frame
