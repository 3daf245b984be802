"""Turns of one connection: one is spoken, and text that comes after its flush waits for its end. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from bistream.errors import InvalidInputError
from interfaces.core.text import Item
from interfaces.protocols.actions import Action, Append, Cancel
from interfaces.protocols.deepgram_controls import DeepgramControls
from interfaces.protocols.messages import text_in

MAX_WAITING_TURNS = 16


@dataclass
class PendingUtterance:
    """text: all of it so far, without controls. controls: their reader."""

    speech: str
    text: str = ""
    is_flushed: bool = False
    controls: DeepgramControls = field(default_factory=DeepgramControls)

    def append(self, items: list[Item]) -> list[Action]:
        """items: of ``controls``."""
        self.text += "".join(map(str, items))
        return [Append(self.speech, item) for item in items]


AnyUtterance = TypeVar("AnyUtterance", bound=PendingUtterance)


class UtteranceQueue(Generic[AnyUtterance]):
    """active: the turn that is spoken; newest: the one that takes more text, unless it is flushed."""

    def __init__(
        self,
        make: Callable[[], AnyUtterance],
        begin: Callable[[AnyUtterance], list[Action]],
        end: Callable[[AnyUtterance], list[Action]],
        max_text_chars: int,
    ) -> None:
        """begin, end: what opens and ends the utterance of a turn, with what the client is told."""
        self._make = make
        self._begin = begin
        self._end = end
        self._max_text_chars = max_text_chars
        self._waiting: deque[AnyUtterance] = deque()
        self.active: AnyUtterance | None = None
        self.is_closing = False  # no more text is taken

    @property
    def newest(self) -> AnyUtterance | None:
        return self._waiting[-1] if self._waiting else self.active

    @property
    def are_over(self) -> bool:
        return self.is_closing and self.active is None

    def speak(self, message: dict[str, Any]) -> list[Action]:
        """An empty text is nothing: many language models begin with one. Raises ``InvalidInputError``."""
        if "text" not in message:
            raise InvalidInputError("Speak needs text; send the next piece of it.")
        text = text_in(message, "text")
        if not text or self.is_closing:
            return []
        turn = self.newest
        is_new = turn is None or turn.is_flushed
        if len(text) + (0 if turn is None or is_new else len(turn.text)) > self._max_text_chars:
            raise InvalidInputError(f"The text of the turn is longer than {self._max_text_chars} characters; send Flush between.")
        if is_new and len(self._waiting) >= MAX_WAITING_TURNS:
            raise InvalidInputError(f"{MAX_WAITING_TURNS} turns wait already; wait for the end of one before you send more.")
        if turn is None or is_new:
            turn = self._make()
        made = turn.append(turn.controls.push(text))
        if turn is self.active:
            return made
        if self.active is None:
            return self._start(turn)
        if is_new:
            self._waiting.append(turn)
        return []

    def flush(self) -> list[Action]:
        """No more text for the newest turn."""
        turn = self.newest
        if turn is None or turn.is_flushed or self.is_closing:
            return []
        turn.is_flushed = True
        made = turn.append(turn.controls.push("", is_whole=True))
        return [*made, *self._end(turn)] if turn is self.active else []

    def close(self) -> list[Action]:
        """A graceful end: turns that were flushed are spoken to their ends, text without a flush is dropped."""
        self.is_closing = True
        turn = self.newest
        if turn is None or turn.is_flushed:
            return []
        if turn is self.active:
            return self.drop()
        self._waiting.pop()
        return []

    def drop(self) -> list[Action]:
        """All turns."""
        active, self.active = self.active, None
        self._waiting.clear()
        return [] if active is None else [Cancel(active.speech)]

    def speaking(self, speech: str) -> AnyUtterance:
        assert self.active is not None and self.active.speech == speech, "events come for the turn that speaks"
        return self.active

    def next(self) -> list[Action]:
        """The active turn is over."""
        self.active = None
        return self._start(self._waiting.popleft()) if self._waiting else []

    def _start(self, turn: AnyUtterance) -> list[Action]:
        self.active = turn
        made = [*self._begin(turn), *([Append(turn.speech, turn.text)] if turn.text else [])]
        return [*made, *self._end(turn)] if turn.is_flushed else made
