"""A session's text as sentences, each spoken in a sequence of its own, as a continuation of those before. Pure: no torch, no clock.

All text of a sequence stands before its speech, so a sentence is spoken once it is whole; the first ones are spoken while the rest is
still being written. Sentences are cut as the later segments of other models (``segments.LaterSegments``): short ones are joined, for the
model fails on very short texts, and long ones are divided, for it loses its place in long ones. Cuts depend on the text tokens alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from bistream.errors import EngineError
from bistream.text2token.cut_places import CutPlaces
from bistream.text2token.engine import TokenSpace, TurnEnd, TurnLimits, TurnResult
from bistream.text2token.layout import Anchor, Turn
from bistream.text2token.one_table.continuation import Continuation
from bistream.text2token.segments import LaterSegments, SegmentLimits
from bistream.text2token.speech_lengths import SpeechLengths
from bistream.types import FinishReason

LONGEST_S = 8.0  # of a sentence; a quarter of it is enough for one to end. 100 characters of English take 7 s
LEAST_SPEECH = 5  # speech tokens of a sentence: upstream's model may end at once, and its decoder fails without any
ROOM_SHARE, ROOM_S = 1.5, 2.0  # over the ordinary pace: what a sentence may take before older ones are worth more than its room


def sentence_limits(tokens_per_second: int, room: int, pace: float) -> SegmentLimits:
    """room: positions behind the shortest prompt, half of which text and speech before a sentence may have."""
    return SegmentLimits(max(1, min(round(LONGEST_S * tokens_per_second), room // 2)), pace)


class SentenceLayout:
    """A ``layout.SessionLayout``. Every turn but the first restarts. decode: the text of ids that stand for whole characters."""

    def __init__(
        self,
        space: TokenSpace,
        continuation: Continuation,
        limits: SegmentLimits,
        places: CutPlaces,
        lengths: SpeechLengths,
        decode: Callable[[Sequence[int]], str],
    ) -> None:
        self._space = space
        self._continuation = continuation
        self._pace = limits.pace
        self._places, self._lengths, self._decode = places, lengths, decode
        self._open = LaterSegments(limits)
        self._whole = deque[list[int]]()  # sentences not yet begun
        self._text_ended = False
        self._turn: Turn | None = None  # in flight
        self._text: list[int] = []  # of the current sentence
        self._failure: FinishReason | None = None
        self._last = FinishReason.EOS  # how the last sentence ended
        self._has_begun = False
        self.anchor: Anchor | None = None
        self.ledger: list[int] = []
        self.num_text_used = self.num_text_pushed = self.num_text_ended = 0
        self.num_speech = 0

    @property
    def finish_reason(self) -> FinishReason | None:
        if self._failure is not None or self._turn is not None or not self._text_ended:
            return self._failure
        return None if self._whole else self._last

    @property
    def num_speech_of_text(self) -> int:
        return self.num_speech

    def push_text(self, ids: Sequence[int]) -> None:
        assert not self._text_ended, "text after the end of the text"
        self.num_text_pushed += len(ids)
        for token_id in ids:
            ended = self._open.push(token_id, self._places.before(token_id), self._lengths.ordinary((token_id,)))
            if ended is not None:
                self._whole.append(ended)

    def end_text(self) -> None:
        self._text_ended = True
        if self._open.ids:
            self._whole.append(self._open.end())

    def next_turn(self) -> Turn | None:
        """None too where what is whole has nothing to speak, or no room; it counts as ended then."""
        if self._turn is not None or self._failure is not None:
            return None
        while self._whole and self._turn is None:
            self._begin(self._whole.popleft())
        return self._turn

    def _begin(self, ids: list[int]) -> None:
        text, ordinary = self._decode(ids), self._lengths.ordinary(ids)
        self.num_text_used += len(ids)
        most = self._lengths.most(len(ids), ordinary, self._space.blocks)
        wanted = min(most, round(ROOM_SHARE * self._pace * ordinary + ROOM_S * self._space.tokens_per_second))
        prompt = self._continuation.prompt(text, wanted)
        most = min(most, self._continuation.room(prompt))
        if most < 1:
            self._last = FinishReason.LENGTH
        if most < 1 or not any(map(str.isalnum, text)):
            self.num_text_ended = self.num_text_used
            return
        limits = TurnLimits(most, min_new_ids=min(LEAST_SPEECH, most), forbidden_early=frozenset({self._space.eos}))
        self._turn = Turn(tuple(prompt), limits, restarts=self._has_begun)
        self._text, self.ledger, self._has_begun = ids, list(prompt), True

    def turn_ended(self, ids: Sequence[int], result: TurnResult) -> None:
        turn, self._turn = self._turn, None
        assert turn is not None, "no turn is in flight"
        self.ledger += ids
        self.num_speech += len(ids)
        if len(ids) > turn.limits.max_new_ids or not all(map(self._space.is_speech, ids)):
            raise EngineError("The language model yielded too many ids or one that is not a speech token; start the session again.")
        if result.end in (TurnEnd.CANCELLED, TurnEnd.ERROR):
            self._failure = FinishReason.CANCELLED if result.end is TurnEnd.CANCELLED else FinishReason.ERROR
            return
        self._last = FinishReason.EOS if result.end is TurnEnd.STOP else FinishReason.LENGTH
        self.num_text_ended = self.num_text_used
        self.anchor = None
        if result.end is TurnEnd.STOP:
            self.anchor = Anchor(self._text, ids)
            self._continuation.spoke(self._decode(self._text), [self._space.speech_token(one) for one in ids])
