"""A session's text in parts, with silence of a given length between them: the breaks of SSML. Pure: no torch, no clock.

Each part has a layout of its own and is spoken to its end, so a break is between two speech tokens, and which ones depends on the text
alone. A part that follows is spoken as it comes, like the first. A text without breaks is one part, whose layout sees what it would see
without this class.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from bistream.text2token.layout import Anchor, LayoutSeries, SessionLayout, Turn
from bistream.types import FinishReason


class Break(NamedTuple):
    """Behind a part: its silence, possibly of no length, and the rate of the speech behind it."""

    silence_ms: int
    rate_percent: int = 100


class PartedLayout(LayoutSeries[SessionLayout]):
    """A ``layout.SessionLayout``. make: the layout of a part. first: of the first one, where it is another."""

    def __init__(self, make: Callable[[], SessionLayout], first: SessionLayout | None = None) -> None:
        super().__init__(first or make())
        self._make = make
        self._later: deque[list[int] | Break] = deque()  # behind the part: text ids and breaks, of which one is the first
        self._text_ended = self._is_later = self._has_begun = self._restarts = False

    @property
    def finish_reason(self) -> FinishReason | None:
        reason = self._current.finish_reason
        if reason in (FinishReason.CANCELLED, FinishReason.ERROR):
            return reason
        if self._later:
            return None
        return FinishReason.EOS if self._text_ended and not self._current.num_text_pushed else reason

    @property
    def anchor(self) -> Anchor | None:
        """Of the last part."""
        return None if self._later else self._current.anchor

    @property
    def num_text_pushed(self) -> int:
        return self._text_before + self._current.num_text_pushed + sum(len(one) for one in self._later if not isinstance(one, Break))

    def push_text(self, ids: Sequence[int]) -> None:
        if self._later and ids:
            self._later.append(list(ids))
        elif ids:
            self._current.push_text(ids)

    def push_break(self, one: Break) -> None:
        """Behind the text so far."""
        if not self._later:
            self._end_part()
        self._later.append(one)

    def end_text(self) -> None:
        self._text_ended = True
        if not self._later:
            self._end_part()

    def take_break(self) -> Break | None:
        """One that is due: all speech before it has come. Then the next part begins. None: none."""
        if not self._later or not self._is_over:
            return None
        one = self._later.popleft()
        assert isinstance(one, Break), "text that belongs to the part before it"
        self._begin_part()
        return one

    def next_turn(self) -> Turn | None:
        turn = None if self._has_nothing else self._current.next_turn()
        if turn is None:
            return None
        turn = replace(turn, restarts=turn.restarts or self._restarts)
        self._has_begun, self._restarts = True, False
        return turn

    @property
    def _has_nothing(self) -> bool:
        """Of the part, which may never have. The first one may begin with its prompt, as long as text is to come."""
        return not self._current.num_text_pushed and (self._is_later or self._text_ended or bool(self._later))

    @property
    def _is_over(self) -> bool:
        """Of a part behind which a break is known."""
        return not self._current.num_text_pushed or self._current.finish_reason in (FinishReason.EOS, FinishReason.LENGTH)

    def _end_part(self) -> None:
        if self._current.num_text_pushed:
            self._current.end_text()

    def _begin_part(self) -> None:
        self._follow(self._make())
        self._is_later, self._restarts = True, self._has_begun
        while self._later and not isinstance(ids := self._later[0], Break):
            self._current.push_text(ids)
            self._later.popleft()
        if self._later or self._text_ended:
            self._end_part()
