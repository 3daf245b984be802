"""Long texts: a session's text in segments that end with a sentence, each spoken in a sequence of its own. Pure: no torch, no clock.

A language model speaks well what is as long as the utterances of its training (``ModelCard.longest_utterance_s``), and a sequence has a
bounded number of positions. So a session whose text would be longer is re-anchored: the segment's text ends (the model speaks all of it,
until eos), and the next segment begins a new sequence with the prompt and, where both fit, the segment before, text and speech, which is
aligned exactly because it ended with eos. The speech tokens of all segments are one stream: flow and vocoder go on and know of no seam.

The first segment has the layout of the session. Later ones are known whole when they begin, so they have the uni-stream layout; a session
whose text comes slowly waits for their end. All are short, mostly a sentence or two: to wait little, to leave room for the segment before,
and because the bi-stream layout is the first to lose its place (of the shipped voice's texts of 6 to 14 s 2 % said something twice, of the
same in the uni-stream layout 0.2 %). Cuts depend on the text tokens alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bistream.text2token.cut_places import CutPlaces, Place
from bistream.text2token.engine import TurnResult
from bistream.text2token.layout import Anchor, LayoutSeries, TokenLayout, Turn
from bistream.text2token.speech_lengths import SpeechLengths
from bistream.types import FinishReason

# Shares of a sequence's room. What the first segment has at least where it ends; that is decided there, for its text is spoken at once:
FIRST = {Place.SENTENCE: 0.25, Place.CLAUSE: 0.6, Place.WORD: 1.0, Place.INSIDE_WORD: 1.1}
# A later one ends with the first sentence after LATER_SENTENCE, or else, at LATER_MOST, with the best place after LATER_LEAST.
LATER_LEAST, LATER_SENTENCE, LATER_MOST = 0.1, 0.25, 1.0
LEAST_ROOM = 0.5  # of the longest utterance: a long prompt leaves at least so much
POSITIONS_PER_SPEECH_TOKEN = 2  # itself, its share of the text, and some more where speech is slower than estimated
# Of a model that never ends: 20 speech tokens for each text token, which takes 8 at an ordinary pace, and the text's share
MOST_POSITIONS_PER_SPEECH_TOKEN = 2.7
PRIOR_PACE_S = 4  # speech of ordinary pace that a prompt's own pace is mixed with: it may be short
SLOWEST_PACE, FASTEST_PACE = 1.6, 0.6

MakeNext = Callable[[Sequence[int], Sequence[int]], TokenLayout]  # text and speech ids of the segment before -> layout of the next one


def most_positions(room: int) -> int:
    """Of a sequence of ``room`` speech tokens and their text, where the model ends no text by itself."""
    return round(MOST_POSITIONS_PER_SPEECH_TOKEN * room)


@dataclass(frozen=True)
class SegmentLimits:
    """room: speech tokens of a sequence behind its prompt. pace: of the voice, speech tokens over those of an ordinary pace."""

    room: int
    pace: float = 1.0

    @classmethod
    def of(cls, longest_utterance_s: float, max_ids: int, num_speech: int, ordinary: int, tokens_per_second: int) -> SegmentLimits:
        """max_ids: positions of a sequence behind its prompt. The prompt: as in ``pace_of``."""
        longest = round(longest_utterance_s * tokens_per_second)
        room = max(longest - num_speech, round(LEAST_ROOM * longest))
        positions = (max_ids - 2) // POSITIONS_PER_SPEECH_TOKEN
        return cls(max(1, min(room, positions)), pace_of(num_speech, ordinary, tokens_per_second))

    @property
    def positions(self) -> int:
        """Of a sequence behind its prompt, at the most."""
        return most_positions(self.room)

    def share(self, ordinary: int) -> float:
        """What ``ordinary`` speech tokens take of the room."""
        return ordinary * self.pace / self.room

    def fits(self, num_speech: int, ordinary: int) -> bool:
        """Whether a segment of ``ordinary`` speech tokens has room behind one that took ``num_speech``."""
        return num_speech + ordinary * self.pace <= self.room


def pace_of(num_speech: int, ordinary: int, tokens_per_second: int) -> float:
    """Of a prompt. ordinary: speech tokens that its text takes at an ordinary pace."""
    if not num_speech or not ordinary:
        return 1.0
    prior = PRIOR_PACE_S * tokens_per_second
    return min(SLOWEST_PACE, max(FASTEST_PACE, (num_speech + prior) / (ordinary + prior)))


class FirstSegment:
    """Where it ends."""

    def __init__(self, limits: SegmentLimits) -> None:
        self._limits = limits
        self._ordinary = 0

    def push(self, place: Place, ordinary: int) -> bool:
        """Whether the segment ends at a place before a token, which is one of it otherwise. ordinary: speech tokens of that token."""
        best = max((kind for kind in FIRST if kind <= place), default=None)
        if best is not None and self._limits.share(self._ordinary) >= FIRST[best]:
            return True
        self._ordinary += ordinary
        return False


class LaterSegments:
    """Cuts the text behind the first segment. ids: of the segment that is open."""

    def __init__(self, limits: SegmentLimits) -> None:
        self._limits = limits
        self._open: list[tuple[int, Place, int]] = []  # text ids, the place before each, its speech tokens at an ordinary pace
        self._ordinary = 0
        self._best = Place.INSIDE_CHARACTER, 0  # and how many tokens are before it

    @property
    def ids(self) -> list[int]:
        return [token_id for token_id, _, _ in self._open]

    def push(self, token_id: int, place: Place, ordinary: int) -> list[int] | None:
        """The segment that ends before this token, or earlier; None: it is still open."""
        share, ended = self._limits.share(self._ordinary), None
        if self._open and share >= LATER_LEAST and place >= max(self._best[0], Place.INSIDE_WORD):
            self._best = place, len(self._open)
        if self._best[1] and (share >= LATER_MOST or (place is Place.SENTENCE and share >= LATER_SENTENCE)):
            ended = self._end(self._best[1])
        self._open.append((token_id, place, ordinary))
        self._ordinary += ordinary
        return ended

    def end(self) -> list[int]:
        """All that is open."""
        return self._end(len(self._open))

    def _end(self, count: int) -> list[int]:
        ended, self._open = self.ids[:count], self._open[count:]
        self._ordinary = sum(ordinary for _, _, ordinary in self._open)
        self._best = Place.INSIDE_CHARACTER, 0
        return ended


class SegmentedLayout(LayoutSeries[TokenLayout]):
    """``layout.SessionLayout`` of a session, made of one layout for each segment. A turn that ``restarts`` needs a new sequence."""

    def __init__(
        self,
        first: TokenLayout,
        limits: SegmentLimits,
        places: CutPlaces,
        lengths: SpeechLengths,
        make_next: MakeNext,
        first_limits: SegmentLimits | None = None,
    ) -> None:
        """first_limits: of the first segment, where it continues an anchor; None: the same."""
        super().__init__(first)
        self._limits = limits
        self._places = places
        self._lengths = lengths
        self._make_next = make_next
        self._first: FirstSegment | None = FirstSegment(first_limits or limits)  # None: more text belongs to later ones
        self._later = LaterSegments(limits)
        self._whole: deque[list[int]] = deque()  # later segments that are complete
        self._text_ended = False
        self._speech: list[int] = []  # of the current segment
        self._text: list[int] = []  # likewise

    @property
    def finish_reason(self) -> FinishReason | None:
        reason = self._current.finish_reason
        if reason in (None, FinishReason.CANCELLED, FinishReason.ERROR) or self._first is not None:
            return reason
        return None if self._whole or self._later.ids or not self._text_ended else reason

    @property
    def anchor(self) -> Anchor | None:
        return Anchor(self._text, self._speech) if self._current.finish_reason is FinishReason.EOS else None

    @property
    def num_text_pushed(self) -> int:
        return self._text_before + self._current.num_text_pushed + sum(map(len, self._whole)) + len(self._later.ids)

    def push_text(self, ids: Sequence[int]) -> None:
        begins = 0  # of later segments
        for token_id in ids:
            place, ordinary = self._places.before(token_id), self._lengths.ordinary((token_id,))
            if self._first is not None and self._first.push(place, ordinary):
                self._feed_first(ids[:begins])
                self._end_first()
            if self._first is not None:
                begins += 1
            elif (ended := self._later.push(token_id, place, ordinary)) is not None:
                self._whole.append(ended)
        if self._first is not None:
            self._feed_first(ids)

    def end_text(self) -> None:
        self._text_ended = True
        if self._first is not None:
            self._end_first()
        elif self._later.ids:
            self._whole.append(self._later.end())

    def next_turn(self) -> Turn | None:
        turn, restarts = self._current.next_turn(), False
        while (
            turn is None and self._whole and self._current.finish_reason in (FinishReason.EOS, FinishReason.LENGTH)
        ):  # also where a segment has no room for one token
            self._begin_next()
            turn, restarts = self._current.next_turn(), True
        return None if turn is None else replace(turn, restarts=restarts)

    def turn_ended(self, ids: Sequence[int], result: TurnResult) -> None:
        super().turn_ended(ids, result)
        self._speech += ids

    def _feed_first(self, ids: Sequence[int]) -> None:
        self._current.push_text(ids)
        self._text += ids

    def _end_first(self) -> None:
        self._current.end_text()
        self._first = None

    def _begin_next(self) -> None:
        following, anchor = self._whole.popleft(), self.anchor
        if anchor is None or not self._limits.fits(len(self._speech), self._lengths.ordinary(following)):
            anchor = Anchor((), ())
        self._text, self._speech = following, []
        self._follow(self._make_next(anchor.text, anchor.speech))
        self._current.push_text(self._text)
        self._current.end_text()
