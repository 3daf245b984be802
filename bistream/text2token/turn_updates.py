"""The updates of the engine's turns on their way to the sinks, which are called without the engine's lock."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable

from bistream.text2token.engine import SEQUENCE_FAILED_SENTENCE, TurnEnd, TurnResult
from bistream.text2token.sequence import SequenceRecord, TurnUpdate

logger = logging.getLogger(__name__)


class TurnUpdates:
    """All but ``deliver`` is called with ``changed`` held."""

    def __init__(self, changed: threading.Condition, fail: Callable[[SequenceRecord], TurnUpdate | None]) -> None:
        """changed: guards the engine's state. fail: ``Scheduler.fail``."""
        self._changed = changed
        self._fail = fail
        self._waiting: deque[TurnUpdate] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, updates: Iterable[TurnUpdate]) -> None:
        self._waiting.extend(updates)

    def deliver(self) -> None:
        """All that there are. A sink that raises ends its session, and no other."""
        while self._waiting:  # the lock is not needed: only this thread removes updates, and a deque's methods are atomic
            update, has_taken_ids = self._waiting.popleft(), False
            try:
                if update.ids:
                    update.sink.on_ids(update.ids, update.texts_left)
                has_taken_ids = True
                if update.result is not None:
                    update.sink.on_end(update.result)
            except Exception:
                logger.exception("a sink raised; its session %s ends", update.sequence.session_id)
                with self._changed:
                    self._give_up(update, has_taken_ids)

    def _give_up(self, update: TurnUpdate, has_taken_ids: bool) -> None:
        """The turn ends with ERROR, unless it was its end that the sink did not take; a turn that the sink began ends like that, too."""
        ending = self._fail(update.sequence)
        if not has_taken_ids:
            self._waiting = deque(other for other in self._waiting if other.sink is not update.sink)
            error = TurnResult(TurnEnd.ERROR, error=SEQUENCE_FAILED_SENTENCE)
            ending = ending or TurnUpdate(update.sequence, update.sink, result=error)
        if ending is not None:
            self._waiting.append(ending)
