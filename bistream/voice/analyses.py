"""Recordings that are being analysed: a bounded queue and a few threads; a recording becomes a voice, or the tokens of a
conversion, once for any number of sessions.

An analysis cannot be interrupted, and takes seconds on a CPU. So nobody blocks for one: a session waits for the future, or gives
up, and an analysis that nobody waits for any more is dropped while it is in the queue. One that runs goes on, for its result is kept.

How many run at a time follows from how long they take. On a GPU the networks take eight together for little more than the time of one;
on a CPU eight together only let the first one wait for the last.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from bistream.errors import BusyError

ANALYSIS_THREADS = 2  # at a time where they are slow: while one recording is at the tokenizer, another can be at the speaker encoder
FAST_ANALYSIS_THREADS = 8  # where they are fast: what goes through the networks together (``fixed_sizes.ROWS``)
FAST_S = 0.1  # an analysis is fast if it takes less, smoothed over a few
_SMOOTHING = 0.2
Result = TypeVar("Result")


def threads_at_a_time(usual_s: float | None) -> int:
    """usual_s: what an analysis has taken lately, waiting for others included; None: not known."""
    return FAST_ANALYSIS_THREADS if usual_s is not None and usual_s < FAST_S else ANALYSIS_THREADS


def smoothed(usual_s: float | None, new_s: float) -> float:
    """Exponential mean of durations."""
    return new_s if usual_s is None else usual_s + _SMOOTHING * (new_s - usual_s)


@dataclass(eq=False)
class Analysis(Generic[Result]):
    """One recording. sessions: how many wait for it. The future yields what ``build`` returned or raised."""

    key: str
    build: Callable[[], Result]
    sessions: int = 0
    future: Future[Result] = field(default_factory=Future)

    @classmethod
    def known(cls, result: Result) -> Analysis[Result]:
        """One that was made before."""
        known = cls("", lambda: result)
        known.future.set_result(result)
        return known


class Analyses:
    """Thread-safe. A thread ends when nothing waits, so that idle servers have none."""

    def __init__(self, most: int) -> None:
        """most: analyses at a time, waiting and running."""
        self._most = most
        self._changed = threading.Condition()
        self._waiting: OrderedDict[str, Analysis[Any]] = OrderedDict()  # the next one first
        self._running: dict[str, Analysis[Any]] = {}
        self._threads = 0
        self._usual_s: float | None = None  # of an analysis

    def request(self, key: str, build: Callable[[], Result]) -> Analysis[Result]:
        """The analysis of ``key``, shared with the sessions that wait for it already. Raises ``BusyError`` when too many wait."""
        with self._changed:
            analysis = self._running.get(key) or self._waiting.get(key)
            if analysis is None:
                if len(self) >= self._most:
                    raise BusyError(f"{self._most} recordings are being analysed already; try again later or use a registered voice.")
                if self._threads < threads_at_a_time(self._usual_s):
                    self._start_thread()
                analysis = self._waiting[key] = Analysis(key, build)
            analysis.sessions += 1
            return analysis

    def abandon(self, analysis: Analysis[Any]) -> None:
        """A session waits no longer."""
        with self._changed:
            analysis.sessions -= 1
            if not analysis.sessions and self._waiting.get(analysis.key) is analysis:
                del self._waiting[analysis.key]

    def close(self, timeout_s: float) -> bool:
        """Drop what waits, and wait for what runs. False: it still runs."""
        with self._changed:
            self._waiting.clear()
            return self._changed.wait_for(lambda: not self._threads, timeout_s)

    def __len__(self) -> int:
        """Waiting and running."""
        return len(self._waiting) + len(self._running)

    def _start_thread(self) -> None:
        """It cannot look for work before the caller releases the lock."""
        try:
            threading.Thread(target=self._work, name="bistream-voice", daemon=True).start()
        except RuntimeError as error:  # the system cannot create another thread
            if not self._threads:
                raise BusyError("The server cannot create a thread for this recording; try again later.") from error
        else:
            self._threads += 1

    def _work(self) -> None:
        while (analysis := self._take()) is not None:
            began_s = time.monotonic()
            try:
                voice = analysis.build()
            except BaseException as error:
                self._done(analysis)
                analysis.future.set_exception(error)
            else:
                self._done(analysis, time.monotonic() - began_s)
                analysis.future.set_result(voice)

    def _take(self) -> Analysis[Any] | None:
        with self._changed:
            if not self._waiting or self._threads > threads_at_a_time(self._usual_s):
                self._threads -= 1
                self._changed.notify_all()
                return None
            _, analysis = self._waiting.popitem(last=False)
            self._running[analysis.key] = analysis
            return analysis

    def _done(self, analysis: Analysis[Any], took_s: float | None = None) -> None:
        """took_s: None for an analysis that failed, whose time says nothing."""
        with self._changed:
            del self._running[analysis.key]
            if took_s is not None:
                self._usual_s = smoothed(self._usual_s, took_s)
