"""Long texts: a session's text in segments that end with a sentence, each spoken in a sequence of its own. Pure: no torch, no clock.

A sequence has a bounded number of positions, and a model forgets its voice over minutes. So beyond ``SegmentLimits.first`` text tokens the
session is re-anchored: the segment's text ends (the model speaks all of it, until eos), and the next segment begins a new sequence with
the prompt and, where that was short enough, the segment before, text and speech, which is aligned exactly because it ended with eos. The
speech tokens of all segments are one stream: flow and vocoder go on and know of no seam.

The first segment has the layout of the session. Later ones are known whole when they begin, so they have the uni-stream layout; a session
whose text comes slowly waits for their end. Cuts depend on the text tokens alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from bistream.text2token.engine import TurnResult
from bistream.text2token.layout import Layout, Turn
from bistream.types import FinishReason

POSITIONS_PER_TEXT_TOKEN = 8  # itself and 7 speech tokens, 0.28 s: slow speech; 20 would be the most
LATER_SENTENCE, LATER_MOST = 30, 100  # text tokens after which a later segment ends: with the next sentence, or anyway
MAX_ANCHOR_IDS = 400  # of text and speech of the segment before: 10 to 15 s
_SENTENCE_ENDS = (
    "。",
    "！",
    "？",
    "!",
    "?",
    "…",
    "\n",
    "\n\n",
    "。\n",
    "！\n",
    "？\n",
    "!\n",
    "?\n",
    "。”",
    "！”",
    "？”",
    '!"',
    '?"',
    "!\n\n",
    "?\n\n",
)
_DOTS = (".", ".\n", ".\n\n", '."', ".”")

MakeNext = Callable[[Sequence[int], Sequence[int]], Layout]  # text and speech ids of the segment before -> layout of the next one


@dataclass(frozen=True)
class SentenceEnds:
    """Ids of text tokens. dots: end a sentence unless a digit stands before them."""

    marks: frozenset[int]
    dots: frozenset[int]
    digits: frozenset[int]

    @classmethod
    def of(cls, encode: Callable[[str], list[int]]) -> SentenceEnds:
        """Those that a tokenizer has as single tokens."""

        def singles(texts: Iterable[str]) -> frozenset[int]:
            return frozenset(ids[0] for ids in map(encode, texts) if len(ids) == 1)

        return cls(singles(_SENTENCE_ENDS), singles(_DOTS), singles("0123456789"))


@dataclass(frozen=True)
class SegmentLimits:
    """Text tokens. A segment ends with the first sentence after three quarters of ``first``, a later one after ``LATER_SENTENCE``, or at
    its limit."""

    first: int
    later: int
    max_anchor_ids: int

    @classmethod
    def of(cls, max_ids: int, num_prompt: int) -> SegmentLimits:
        """max_ids: positions of a sequence. num_prompt: those of the prompt."""
        most = max(1, (max_ids - num_prompt - 2) // POSITIONS_PER_TEXT_TOKEN)
        return cls(most, min(LATER_MOST, max(1, most // 2)), min(MAX_ANCHOR_IDS, (max_ids - num_prompt) // 4))


class SegmentedLayout:
    """``layout.Layout`` of a session, made of one layout for each segment. A turn that ``restarts`` needs a new sequence."""

    def __init__(self, first: Layout, limits: SegmentLimits, ends: SentenceEnds, make_next: MakeNext) -> None:
        self._current = first
        self._limits = limits
        self._ends = ends
        self._make_next = make_next
        self._is_first_open = True  # more text may still join the first segment
        self._num_first = 0  # text tokens of the first segment that its layout has
        self._open: list[int] = []  # text of the segment that is being filled
        self._whole: deque[list[int]] = deque()  # later segments that are complete
        self._after_digit = False
        self._text_ended = False
        self._speech: list[int] = []  # of the current segment
        self._text: list[int] = []  # likewise
        self.num_text_ended = 0
        self._num_speech_ended = 0
        self._num_speech_of_text_ended = 0

    @property
    def done(self) -> bool:
        return self.finish_reason is not None

    @property
    def finish_reason(self) -> FinishReason | None:
        reason = self._current.finish_reason
        if reason in (None, FinishReason.CANCELLED, FinishReason.ERROR) or self._is_first_open:
            return reason
        return None if self._whole or self._open or not self._text_ended else reason

    @property
    def num_text_used(self) -> int:
        return self.num_text_ended + self._current.num_text_used

    @property
    def num_text_pushed(self) -> int:
        return self.num_text_ended + self._current.num_text_pushed + sum(map(len, self._whole)) + len(self._open)

    @property
    def num_speech(self) -> int:
        return self._num_speech_ended + self._current.num_speech

    @property
    def num_speech_of_text(self) -> int:
        return self._num_speech_of_text_ended + self._current.num_speech_of_text

    @property
    def ledger(self) -> Sequence[int]:
        return self._current.ledger

    def push_text(self, ids: Sequence[int]) -> None:
        for token_id in ids:
            self._open.append(token_id)
            if self._ends_segment(token_id):
                self._end_segment()
            self._after_digit = token_id in self._ends.digits
        if self._is_first_open:
            self._feed_first()

    def end_text(self) -> None:
        self._text_ended = True
        if self._is_first_open or self._open:
            self._end_segment()

    def next_turn(self) -> Turn | None:
        turn, restarts = self._current.next_turn(), False
        while turn is None and self._current.done and self._whole and not self.done:  # also where a segment has no room for one token
            self._begin_next()
            turn, restarts = self._current.next_turn(), True
        return None if turn is None else replace(turn, restarts=restarts)

    def turn_ended(self, ids: Sequence[int], result: TurnResult) -> None:
        self._current.turn_ended(ids, result)
        self._speech += ids

    def _ends_segment(self, token_id: int) -> bool:
        count = len(self._open) + (self._num_first if self._is_first_open else 0)
        sentence, most = (self._limits.first * 3 // 4, self._limits.first) if self._is_first_open else (LATER_SENTENCE, self._limits.later)
        is_end = token_id in self._ends.marks or (token_id in self._ends.dots and not self._after_digit)
        return count >= most or (count >= sentence and is_end)

    def _end_segment(self) -> None:
        if self._is_first_open:
            self._feed_first()
            self._current.end_text()
            self._is_first_open = False
        else:
            self._whole.append(self._open)
            self._open = []

    def _feed_first(self) -> None:
        self._current.push_text(self._open)
        self._num_first += len(self._open)
        self._text += self._open
        self._open = []

    def _begin_next(self) -> None:
        before = self._current
        anchor: tuple[list[int], list[int]] = ([], [])
        if before.finish_reason is FinishReason.EOS and len(self._text) + len(self._speech) <= self._limits.max_anchor_ids:
            anchor = (self._text, self._speech)
        self.num_text_ended += before.num_text_pushed
        self._num_speech_ended += before.num_speech
        self._num_speech_of_text_ended += before.num_speech_of_text
        self._text, self._speech = self._whole.popleft(), []
        self._current = self._make_next(*anchor)
        self._current.push_text(self._text)
        self._current.end_text()
