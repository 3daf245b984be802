"""The updates of the engine's turns on their way to the sinks, which are called without the engine's lock."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace

from bistream.text2token.engine import SEQUENCE_FAILED_SENTENCE, TakesTextPlaces, TurnEnd, TurnResult
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
        while (update := self._next()) is not None:
            try:
                _pass_on(update)
            except Exception:
                logger.exception("a sink raised; its session %s ends", update.sequence.session_id)
                with self._changed:
                    self._give_up(update)

    def _next(self) -> TurnUpdate | None:
        """Ids or a result, so that it is known which of them a sink did not take."""
        with self._changed:
            if not self._waiting:
                return None
            update = self._waiting.popleft()
            if update.ids and update.result is not None:
                self._waiting.appendleft(replace(update, ids=(), texts_left=None))
                update = replace(update, result=None)
            return update

    def _give_up(self, update: TurnUpdate) -> None:
        """The turn ends with ERROR, unless it was its end that the sink did not take; a turn that the sink began ends like that, too."""
        ending = self._fail(update.sequence)
        if update.result is None:
            self._waiting = deque(other for other in self._waiting if other.sink is not update.sink)
            error = TurnResult(TurnEnd.ERROR, error=SEQUENCE_FAILED_SENTENCE)
            ending = ending or TurnUpdate(update.sequence, update.sink, result=error)
        if ending is not None:
            self._waiting.append(ending)


def _pass_on(update: TurnUpdate) -> None:
    if update.texts_left is not None and isinstance(update.sink, TakesTextPlaces):
        update.sink.on_texts_left(update.texts_left)
    if update.ids:
        update.sink.on_ids(update.ids)
    if update.result is not None:
        update.sink.on_end(update.result)
