"""Common parts of a session's layouts: the turn that they request, their interface to the service, their book-keeping.

Pure: no torch, no clock, no threads. The layouts are in ``interleave.py``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from bistream.errors import EngineError
from bistream.text2token.engine import TokenSpace, TurnEnd, TurnLimits, TurnResult
from bistream.text2token.speech_lengths import SpeechLengths
from bistream.types import FinishReason

UNLIMITED_IDS = 1 << 30


@dataclass(frozen=True)
class Turn:
    """Ids to append to the sequence (``TokenSpace`` numbering), and the limits for decoding after them.

    restarts: the ids begin a new sequence, and the one before is of no use any more.
    """

    append_ids: tuple[int, ...]
    limits: TurnLimits
    restarts: bool = False


@dataclass(frozen=True)
class Anchor:
    """A text and the speech of it, in ``TokenSpace`` numbering, that a later sequence may continue. The speech has ended by itself, so the
    two belong together exactly."""

    text: Sequence[int]
    speech: Sequence[int]

    @property
    def count(self) -> int:
        return len(self.text) + len(self.speech)


class TokenLayout(Protocol):
    """One session's sequence. ``next_turn`` and ``turn_ended`` alternate; text may arrive at any time before ``end_text``."""

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the session ended; None: it has not."""

    @property
    def num_text_used(self) -> int:
        """New text tokens (prompt text excluded) that turns have appended so far."""

    @property
    def num_text_pushed(self) -> int:
        """New text tokens, whether appended or not."""

    @property
    def num_text_ended(self) -> int:
        """New text tokens of the sequences that this session has left behind: nothing more of them will be spoken."""

    @property
    def num_speech(self) -> int:
        """Speech tokens decoded so far, in ended turns."""

    @property
    def num_speech_of_text(self) -> int:
        """Those of ``num_speech`` decoded since the first new text token was appended."""

    @property
    def ledger(self) -> Sequence[int]:
        """All ids of the sequence so far; those that the turn in flight has yielded are still missing."""

    def push_text(self, ids: Sequence[int]) -> None: ...

    def end_text(self) -> None: ...

    def next_turn(self) -> Turn | None:
        """The turn to run now; None if more text is needed, a turn is in flight or the session is done."""

    def turn_ended(self, ids: Sequence[int], result: TurnResult) -> None:
        """``ids``: those that the turn yielded. Raises ``EngineError`` for an id that the turn did not allow."""


class SessionLayout(TokenLayout, Protocol):
    """Of a whole session."""

    @property
    def anchor(self) -> Anchor | None:
        """What was spoken last, where it ended by itself. Read it once the session has ended."""


Part = TypeVar("Part", bound=TokenLayout)


class LayoutSeries(Generic[Part]):
    """Layouts that are spoken one after another, counted as one ``TokenLayout``."""

    def __init__(self, first: Part) -> None:
        self._text_before = self._speech_before = self._speech_of_text_before = 0  # of the layouts before the current one
        self._current = first

    @property
    def num_text_used(self) -> int:
        return self._text_before + self._current.num_text_used

    @property
    def num_text_ended(self) -> int:
        return self._text_before + self._current.num_text_ended

    @property
    def num_speech(self) -> int:
        return self._speech_before + self._current.num_speech

    @property
    def num_speech_of_text(self) -> int:
        return self._speech_of_text_before + self._current.num_speech_of_text

    @property
    def ledger(self) -> Sequence[int]:
        return self._current.ledger

    def turn_ended(self, ids: Sequence[int], result: TurnResult) -> None:
        self._current.turn_ended(ids, result)

    def _follow(self, following: Part) -> None:
        """The current layout is over."""
        self._text_before += self._current.num_text_pushed
        self._speech_before += self._current.num_speech
        self._speech_of_text_before += self._current.num_speech_of_text
        self._current = following


class LayoutState:
    """State of both layouts. ``max_ids``: positions that the session may use; it ends with LENGTH when they are used up. ``lengths``:
    by which the speech of the text is bounded; None: by the number of text tokens alone, as upstream does.

    ``ledger``: all ids of the sequence, in order: appended when their turn starts, yielded ones when it has ended (in whatever way). A
    new sequence that is first given the ledger continues where this one was. Stop ids are not part of it.
    """

    def __init__(
        self,
        space: TokenSpace,
        prompt_text_ids: Sequence[int],
        prompt_speech_ids: Sequence[int],
        max_ids: int | None,
        lengths: SpeechLengths | None,
    ) -> None:
        self.space = space
        self.finish_reason: FinishReason | None = None
        self.num_text_pushed = 0
        self.num_text_ended = 0
        self.num_speech = 0
        self.num_speech_of_text = 0
        self._text = deque(prompt_text_ids)  # not yet appended; prompt text first
        self._prompt_speech = deque(prompt_speech_ids)  # not yet appended
        self._num_prompt_text = len(prompt_text_ids)
        self._lengths = lengths
        self._ordinary = 0  # speech tokens that the new text takes at an ordinary pace
        self._num_text_taken = 0  # text tokens appended, prompt text included
        self._text_ended = False
        self._max_ids = UNLIMITED_IDS if max_ids is None else max_ids
        self.ledger: list[int] = []
        self._turn: Turn | None = None  # in flight

    @property
    def num_text_used(self) -> int:
        return max(0, self._num_text_taken - self._num_prompt_text)

    def push_text(self, ids: Sequence[int]) -> None:
        assert not self._text_ended, "text after the end of the text"
        self._text.extend(ids)
        self.num_text_pushed += len(ids)
        if self._lengths is not None:
            self._ordinary += self._lengths.ordinary(ids)

    def end_text(self) -> None:
        self._text_ended = True

    @property
    def _most_speech(self) -> int:
        """Speech tokens that the new text may take."""
        if self._lengths is None:
            return self.space.blocks.max_speech_per_text * self.num_text_pushed
        return self._lengths.most(self.num_text_pushed, self._ordinary, self.space.blocks)

    def _take_text(self, count: int) -> list[int]:
        self._num_text_taken += count
        return [self._text.popleft() for _ in range(count)]

    def _take_prompt_speech(self, count: int) -> list[int]:
        return [self._prompt_speech.popleft() for _ in range(min(count, len(self._prompt_speech)))]

    def _start(self, append_ids: Sequence[int], limits: TurnLimits) -> Turn | None:
        """The turn, limited to the remaining positions. Without room for one more id the session ends here."""
        room = self._max_ids - len(self.ledger) - len(append_ids)
        max_new_ids = min(limits.max_new_ids, room)
        if max_new_ids < 1:
            self.finish_reason = FinishReason.LENGTH
            return None
        self.ledger += append_ids
        self._turn = Turn(
            tuple(append_ids),
            TurnLimits(
                max_new_ids=max_new_ids,
                min_new_ids=min(limits.min_new_ids, max_new_ids),
                forbidden=limits.forbidden,
                forbidden_early=limits.forbidden_early,
                record_on_length=limits.record_on_length if max_new_ids == limits.max_new_ids else None,
            ),
        )
        return self._turn

    def _end_turn(self, ids: Sequence[int], result: TurnResult) -> Turn:
        """Account for an ended turn. Sets ``finish_reason`` if the engine ended the session."""
        turn = self._turn
        assert turn is not None, "no turn is in flight"
        self._turn = None
        self.ledger += ids
        self.num_speech += len(ids)
        if self.num_text_used:
            self.num_speech_of_text += len(ids)
        if len(ids) > turn.limits.max_new_ids or not all(map(self.space.is_speech, ids)):
            raise EngineError("The language model yielded too many ids or one that is not a speech token; start the session again.")
        if result.end is TurnEnd.CANCELLED:
            self.finish_reason = FinishReason.CANCELLED
        elif result.end is TurnEnd.ERROR:
            self.finish_reason = FinishReason.ERROR
        elif result.end is TurnEnd.STOP:
            forbidden = turn.limits.forbidden | (turn.limits.forbidden_early if len(ids) < turn.limits.min_new_ids else frozenset())
            if result.stop_id not in self.space.specials or result.stop_id in forbidden:
                raise self._unexpected(result.stop_id)
        elif len(ids) < turn.limits.max_new_ids:
            self.finish_reason = FinishReason.LENGTH  # the engine had no room left
        return turn

    def _unexpected(self, stop_id: int | None) -> EngineError:
        return EngineError(f"The language model sampled id {stop_id}, which is not allowed at this point; start the session again.")
