"""A text in pieces, with pauses, divided into the sessions that speak it. Pure.

A server speaks the last words of a text when it knows that the text ends there. So a *segment* of an utterance, the text up to a flush or
up to a pause, is a session of its own; the next segment begins with the text that comes afterwards, and its session when all audio of the
one before has come. An utterance therefore takes one place on the servers, and none while it waits for text.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from bistream.client.asyncio_client import AsyncClientSession
from bistream.config import RuntimeConfig
from bistream.contract.checks import is_speakable

MAX_CHARS = RuntimeConfig.max_text_chars  # of a session, where the server does not say it
_SENTENCE_END = re.compile(r"[.!?][\"')\]]*\s+(?=\S)|[。！？][”’」』）]*(?=.)|\n+(?=.)")  # with something behind it


def room_in(before: str, text: str, limit: int) -> int:
    """How many characters of ``text`` still belong to the session that speaks ``before``, which has at most ``limit``; fewer than all: the
    session ends there. It does at the first end of a sentence in the last quarter, else at a blank, else at the limit."""
    first, total = max(3 * limit // 4, len(before)), len(before) + len(text)
    if total <= first:
        return len(text)
    whole = before + text
    for found in _SENTENCE_END.finditer(whole, max(0, first - 8), limit + 1):
        if first <= found.end() <= limit:
            return found.end() - len(before)
    if total <= limit:
        return len(text)
    return max(whole.rfind(" ", first, limit) + 1 or limit, len(before)) - len(before)


@dataclass
class Segment:
    """begins_at: its first character in the utterance. speed: None: as usual. silence_ms: of a break, which has no text. text: all of it
    so far. is_flushed: it was ended by a flush. session: the one that speaks it now, to which more of its text goes directly."""

    begins_at: int
    speed: float | None = None
    silence_ms: int = 0
    text: str = ""
    is_ended: bool = False
    is_flushed: bool = False
    session: AsyncClientSession | None = None

    @property
    def is_speakable(self) -> bool:
        return is_speakable(self.text)

    @property
    def is_silence(self) -> bool:
        """It has ended without anything to speak; blanks alone are not even silence."""
        return self.is_ended and not self.is_speakable

    def place_of(self, spoken: int) -> int:
        """Characters of the utterance, given those of this segment."""
        return self.begins_at + min(spoken, len(self.text))


class Segments:
    """Those that are not over, the oldest first."""

    def __init__(self) -> None:
        self.characters = 0  # of all segments
        self.speed: float | None = None  # of those that begin from here on
        self._left: deque[Segment] = deque()

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._left)

    @property
    def open(self) -> Segment | None:
        """The one that takes more text."""
        return self._left[-1] if self._left and not self._left[-1].is_ended else None

    @property
    def are_over(self) -> bool:
        return not self._left

    def add(self, text: str) -> Segment:
        """text: not empty. The segment that it belongs to."""
        segment = self.open or self._begin()
        segment.text += text
        self.characters += len(text)
        return segment

    def end(self, is_flush: bool = False) -> Segment | None:
        """The open segment, which ends here; a flush without one makes an empty segment, so that it is told in its turn."""
        segment = self.open or (self._begin() if is_flush else None)
        if segment is not None:
            segment.is_ended, segment.is_flushed = True, is_flush
        return segment

    def add_break(self, silence_ms: int) -> None:
        """Behind the text so far, whose segment has ended."""
        self._left.append(Segment(self.characters, silence_ms=silence_ms, is_ended=True))

    def next(self) -> Segment | None:
        """The oldest one, if it can be spoken, or be left out, now."""
        if not self._left:
            return None
        first = self._left[0]
        return first if first.is_ended or first.is_speakable else None

    def pop(self) -> None:
        """The oldest one is over."""
        self._left.popleft()

    def _begin(self) -> Segment:
        self._left.append(Segment(self.characters, self.speed))
        return self._left[-1]
