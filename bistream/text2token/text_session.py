"""One text session of the speech token service: its text, its layout, its sequence in the engine.

In: pieces of text (any thread), turns of the engine (its thread). Out: ``SpeechTokens`` to the session's sink and, exactly once and last,
an end: a message with a finish reason or a ``BistreamError``.

Threads: ``_lock`` guards all state except the text being encoded; it is re-entrant, because a sink may cancel its session, but not append
to it. Tokens are passed to the sink with the lock held, to keep their order; the end is passed without it, after the session was marked
closed under it. ``_text_lock`` keeps the pieces in order while they are encoded; it is acquired before ``_lock``, and never by the engine's
thread, which so does not wait for the tokenizer.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial

from bistream.contract.checks import check_text_length, count_characters
from bistream.contract.refusals import came_late, shut_down, silent_too_long, text_has_ended, unknown_session
from bistream.errors import BistreamError, CancelledError, EngineError, InvalidInputError
from bistream.text.markup import MarkupReader
from bistream.text.preparation import TextPreparation
from bistream.text.speakable import SpeakableBytes
from bistream.text.text_in import TextIn, TextToken
from bistream.text.tokenizer import TextTokenizer
from bistream.text2token.engine import SEQUENCE_FAILED_SENTENCE, TokenSpace, TurnResult
from bistream.text2token.parted_layout import PartedLayout
from bistream.text2token.sequence_series import SequenceSeries
from bistream.text2token.silence import SilenceThinning
from bistream.text2token.text_feed import ReadText, TextFeed
from bistream.types import FinishReason, SpeechBreak, SpeechTokens

logger = logging.getLogger(__name__)

Message = SpeechTokens | BistreamError
MessageSink = Callable[[Message], None]
MakeParts = Callable[[int], tuple[PartedLayout, SequenceSeries]]  # from the text tokens known at the start


class TextSession:
    """Implements ``TurnSink``. ``on_closed`` is called once, after everything is freed and before the sink receives the end."""

    def __init__(
        self,
        session_id: str,
        space: TokenSpace,
        tokenizer: TextTokenizer,
        max_text_chars: int,
        idle_timeout_s: float,
        sink: MessageSink,
        on_closed: Callable[[TextSession], None],
        preparation: TextPreparation | None = None,
        markup: MarkupReader | None = None,
        silence: SilenceThinning | None = None,
        skipped_chars: int = 0,  # of the session's text, before the text that it gets here
    ) -> None:
        self.session_id = session_id
        self.end: Message | None = None  # its last message; None while it is live, and for a start that was refused
        self._space = space
        self._text = TextFeed(TextIn(tokenizer, preparation, markup), skipped_chars)
        self._max_text_chars, self._idle_timeout_s = max_text_chars, idle_timeout_s
        self._sink, self._on_closed = sink, on_closed
        self._lock, self._text_lock = threading.RLock(), threading.RLock()
        self._layout: PartedLayout | None = None  # from ``open`` on
        self._sequences: SequenceSeries | None = None  # from ``open`` on
        self._closed = self._text_ended = False
        self._heard_at = float("inf")  # the last call for this session, from ``open`` on
        self._quiet_since = float("inf")  # the last text that can be spoken, or the last look that found a turn in flight
        self._silence = silence or SilenceThinning(frozenset())
        self._speakable = SpeakableBytes()
        self._turn_ids: list[int] | None = None  # yielded by the turn in flight; None: no turn in flight
        self._engine_error: str | None = None

    @property
    def end_error(self) -> BistreamError | None:
        """The error that it ended with; ``None`` while it is live, and where it finished."""
        return self.end if isinstance(self.end, BistreamError) else None

    # -- the client's side -------------------------------------------------------------------------------------------

    def open(self, text: bytes, is_end: bool, now: float, make_parts: MakeParts) -> None:
        """Start the session. If this raises, the session is closed and its sink is never called."""
        with self._lock:
            try:
                if self._closed:
                    raise CancelledError("The session was ended before it started; start it again.")
                check_text_length(self._text.num_chars + count_characters(text), self._max_text_chars)
                self._speakable.push(text, is_end)
                found = self._text.read(text, is_end)
                self._layout, self._sequences = make_parts(sum(isinstance(one, TextToken) for one in found))
            except BaseException as error:
                self._closed = True
                self._on_closed(self)
                if isinstance(error, BistreamError):
                    error.session_id = self.session_id
                raise
            self._heard_at = self._quiet_since = now
            ending = self._end_of(partial(self._feed, found, is_end))
        self.finish(ending)

    def append(self, text: bytes, is_end: bool, now: float) -> None:
        """Add text; with empty text, only renew the lease. Text that cannot be decoded ends the session (and raises)."""
        with self._text_lock:
            with self._lock:
                self._check_live()
                self._heard_at = now
                if self._text_ended and text:
                    raise text_has_ended(self.session_id)
                if self._text_ended:
                    return
            try:
                check_text_length(self._text.num_chars + count_characters(text), self._max_text_chars)
                is_speakable = self._speakable.push(text, is_end)
            except InvalidInputError as error:  # the session goes on without this piece
                error.session_id = self.session_id
                raise
            try:
                found = self._text.read(text, is_end)
            except Exception as error:
                failure = self._failure(error)
                self.finish(failure)
                raise failure from None
            with self._lock:
                self._check_live()
                if is_speakable:
                    self._quiet_since = now
                ending = self._end_of(partial(self._feed, found, is_end))
        self.finish(ending)

    def demand(self, slack_s: float, wanted_tokens: int) -> None:
        """See ``engine.TakesDemands``."""
        if self._sequences is not None:
            self._sequences.demand(slack_s, wanted_tokens)

    def expire(self, now: float) -> None:
        """Close the session if it still waits for text, and its client has been silent, or has sent nothing to speak, for too long.

        The first limit is the lease, which an empty piece renews. The second is for whoever renews it without end: the front models end
        such a session after the same time without text and audio, so here that time counts once more, and beyond what was spoken.
        """
        with self._lock:
            if self._turn_ids is not None:
                self._quiet_since = now
            spoken_s = 0.0 if self._layout is None else self._layout.num_speech / self._space.tokens_per_second
            is_silent = now - self._heard_at >= self._idle_timeout_s
            is_silent |= now - self._quiet_since >= 2 * self._idle_timeout_s + spoken_s
            error = silent_too_long(self._idle_timeout_s, self.session_id)
            if self._text_ended or not is_silent or not self._mark_closed(error):
                return
        self._release(error)

    def finish(self, message: Message | None) -> bool:
        """End the session with ``message``, if any, unless it has ended, and free everything. Returns whether this call ended it."""
        with self._lock:
            if message is None or not self._mark_closed(message):
                return False
        self._release(message)
        return True

    # -- the engine's side (TurnSink) --------------------------------------------------------------------------------

    def on_ids(self, ids: Sequence[int], texts_left: int | None = None) -> None:
        self._in_turn(lambda sequences: self._take_ids(sequences, ids, texts_left))

    def on_end(self, result: TurnResult) -> None:
        self._in_turn(lambda sequences: self._take_end(sequences, result))

    def _in_turn(self, work: Callable[[SequenceSeries], Message | None]) -> None:
        with self._lock:
            if self._closed or self._turn_ids is None or self._sequences is None:
                return
            ending = self._end_of(partial(work, self._sequences))
        self.finish(ending)

    # -- inside, with the lock held ----------------------------------------------------------------------------------

    def _end_of(self, work: Callable[[], Message | None]) -> Message | None:
        """The end of the session that ``work`` returns, or the error that it raises."""
        try:
            return work()
        except Exception as error:
            return self._failure(error)

    def _failure(self, error: Exception) -> BistreamError:
        if not isinstance(error, BistreamError):
            logger.error("session %s failed", self.session_id, exc_info=error)
            error = EngineError(SEQUENCE_FAILED_SENTENCE)
        error.session_id = error.session_id or self.session_id
        return error

    def _take_end(self, sequences: SequenceSeries, result: TurnResult) -> Message | None:
        assert self._layout is not None and self._turn_ids is not None
        self._hand_out(sequences, sequences.held(), 0)
        if self._closed or (final := sequences.ended(result, self._layout.ledger, self._turn_ids, self)) is None:  # closed by its sink
            return None
        ids, self._turn_ids = self._turn_ids, None
        self._engine_error = final.error
        self._layout.turn_ended(ids, final)
        if (ending := self._pump()) is None and self._turn_ids is None:
            self._sink(self._message(is_resting=True))
        return ending

    def _take_ids(self, sequences: SequenceSeries, ids: Sequence[int], texts_left: int | None) -> None:
        if texts_left is not None and self._layout is not None:  # the last text id of a sequence is the last one that the layout has used
            self._text.places.attend(self._layout.num_text_used - 1 - texts_left)
        self._hand_out(sequences, sequences.yielded(ids), len(ids))

    def _hand_out(self, sequences: SequenceSeries, ids: Sequence[int], num_yielded: int) -> None:
        """Ids of the turn in flight. num_yielded: by the engine, some of which the series may have held."""
        assert self._turn_ids is not None
        self._turn_ids.extend(ids)
        offset, end = self._space.speech_offset, self._space.first_special
        tokens = self._silence.push([token_id - offset for token_id in ids if offset <= token_id < end])
        sequences.kept(num_yielded - len(tokens))
        if ids:
            self._sink(self._message(tokens))

    def _check_live(self) -> None:
        if self.end is not None:
            raise came_late(self.end_error, self.session_id)
        if self._closed or self._layout is None:
            raise unknown_session(self.session_id)

    def _feed(self, found: ReadText, is_end: bool) -> Message | None:
        assert self._layout is not None
        self._text_ended |= is_end
        return self._pump() if self._text.feed(self._layout, found, is_end) else None

    def _pump(self) -> Message | None:
        """Start the next turn if one is ready and none is in flight. Returns the session's end, if it has ended. Raises as ``begin``."""
        assert self._layout is not None and self._sequences is not None
        while self._turn_ids is None and not self._closed and (one := self._layout.take_break()) is not None:
            filling = self._silence.filling() if one.silence_ms or self._layout.num_speech else ()  # nothing is withheld yet
            self._sink(self._message(filling, breaks=(SpeechBreak(0, len(filling), *one),)))
        if self._turn_ids is None and not self._closed and (turn := self._layout.next_turn()) is not None:
            self._turn_ids = []
            self._sequences.begin(turn, self)
        return self._ending()

    def _ending(self) -> Message | None:
        assert self._layout is not None
        reason = self._layout.finish_reason
        if reason is None:
            return None
        if reason is FinishReason.CANCELLED:  # by the engine: a session that this class cancels is already closed
            return shut_down(self.session_id)
        if reason is FinishReason.ERROR:
            return EngineError(self._engine_error or "The language model failed; try again later.", self.session_id)
        return self._message(reason=reason)

    def _message(
        self,
        token_ids: tuple[int, ...] = (),
        reason: FinishReason | None = None,
        is_resting: bool = False,
        breaks: tuple[SpeechBreak, ...] = (),
    ) -> SpeechTokens:
        assert self._layout is not None
        fed, places = self._layout.num_text_used, self._text.places
        is_spoken = reason is FinishReason.EOS or (reason is FinishReason.LENGTH and fed == self._layout.num_text_pushed)
        consumed = self._text.num_chars if is_spoken else self._text_consumed(fed)
        return SpeechTokens(token_ids, consumed, reason, is_resting, places.until(fed), fed, places.attended, breaks)

    def _text_consumed(self, fed: int) -> int:
        """Lower bound of the characters spoken so far: a text token takes at most ``max_speech_per_text`` speech tokens."""
        assert self._layout is not None
        in_turn = len(self._turn_ids) if fed and self._turn_ids is not None else 0
        spoken = min((self._layout.num_speech_of_text + in_turn) // self._space.blocks.max_speech_per_text, fed)
        return self._text.places.until(max(spoken, self._layout.num_text_ended))

    def _mark_closed(self, end: Message) -> bool:
        """Stop all further calls and turns. False if the session was closed already, or is not open yet and needs no end message."""
        was_open = not self._closed and self._sequences is not None
        self._closed = True
        if was_open:
            self.end = end
        return was_open

    # -- inside, without the lock where possible ---------------------------------------------------------------------

    def _release(self, message: Message) -> None:
        """Free everything before sending the end, so that its receiver can start again at once."""
        assert self._sequences is not None
        try:
            self._sequences.close()
        except Exception:
            logger.exception("the sequence of session %s could not be closed", self.session_id)
        self._on_closed(self)
        try:
            self._sink(message)
        except Exception:
            logger.exception("the sink of session %s did not take its end", self.session_id)
