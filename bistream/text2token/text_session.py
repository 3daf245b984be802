"""One text session of the speech token service: its text, its layout, its sequence in the engine.

In: pieces of text (any thread) and turns of the engine (the engine's thread). Out: ``SpeechTokens`` to the session's sink
and, exactly once and last, an end: a message with a finish reason or a ``BistreamError``. Made by ``service.py``.

Threads: ``_lock`` guards all state except the text being encoded; it is re-entrant, because a sink may cancel its session.
Tokens are passed to the sink with the lock held, to keep their order; the end is passed without it, after the session was marked
closed under it. ``_text_lock`` keeps the pieces in order while they are encoded; it is acquired before ``_lock``, and never by the
engine's thread, so that thread does not wait for the tokenizer. A sink may cancel its session but not append to it.
Nothing here blocks for long: the engine's ``turn`` and ``close`` return at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from bistream.errors import (
    BistreamError,
    CancelledError,
    EngineError,
    InvalidInputError,
    SessionTimeoutError,
    ShuttingDownError,
    UnknownSessionError,
)
from bistream.limits import check_text_length, count_characters
from bistream.rates import MAX_SPEECH_TOKENS_PER_TEXT_TOKEN
from bistream.text.text_in import TextIn, TextToken
from bistream.text.tokenizer import TextTokenizer
from bistream.text2token.engine import Engine, EngineSequence, SamplingSpec, TokenSpace, TurnResult
from bistream.text2token.layout import Layout
from bistream.types import FinishReason, SpeechTokens

logger = logging.getLogger(__name__)

Message = SpeechTokens | BistreamError
MessageSink = Callable[[Message], None]
MakeLayout = Callable[[int], tuple[Layout, int]]  # text tokens known at the start -> layout, positions to reserve


class TextSession:
    """Implements ``TurnSink``. ``on_closed`` is called once, after everything is freed and before the sink receives the end."""

    def __init__(
        self,
        session_id: str,
        space: TokenSpace,
        tokenizer: TextTokenizer,
        max_text_chars: int,
        sink: MessageSink,
        on_closed: Callable[[TextSession], None],
    ) -> None:
        self.session_id = session_id
        self._space = space
        self._text_in = TextIn(tokenizer)
        self._max_text_chars = max_text_chars
        self._sink = sink
        self._on_closed = on_closed
        self._lock = threading.RLock()
        self._text_lock = threading.RLock()
        self._layout: Layout | None = None  # from ``open`` on
        self._sequence: EngineSequence | None = None  # from ``open`` on
        self._closed = False
        self._deadline = float("inf")
        self._num_chars = 0  # of the session's text
        self._end_chars: list[int] = []  # per text token
        self._text_ended = False
        self._turn_ids: list[int] | None = None  # yielded by the turn in flight; None: no turn in flight
        self._engine_error: str | None = None

    # -- the client's side -------------------------------------------------------------------------------------------

    def open(self, text: bytes, is_end: bool, deadline: float, engine: Engine, spec: SamplingSpec, make_layout: MakeLayout) -> None:
        """Start the session. If this raises, the session is closed and its sink is never called."""
        with self._lock:
            try:
                if self._closed:
                    raise CancelledError("The session was ended before it started; start it again.")
                tokens = self._encode(text, is_end)
                self._layout, max_ids = make_layout(len(tokens))
                self._sequence = engine.open(self.session_id, spec, max_ids)
            except BaseException as error:
                self._closed = True
                self._on_closed(self)
                if isinstance(error, BistreamError):
                    error.session_id = self.session_id
                raise
            self._deadline = deadline
            ending = self._push_tokens(tokens, is_end)
        self._finish_with(ending)

    def append(self, text: bytes, is_end: bool, deadline: float) -> None:
        """Add text; with empty text, only renew the lease. Text that cannot be decoded ends the session (and raises)."""
        with self._text_lock:
            with self._lock:
                self._check_live()
                self._deadline = deadline
                if self._text_ended and text:
                    raise InvalidInputError("The text of this session has ended; start a new session for more.", self.session_id)
                if self._text_ended:
                    return
            self._check_length(text)
            try:
                tokens = self._encode(text, is_end)
            except InvalidInputError as error:
                self._finish_with(error)
                raise
            with self._lock:
                self._check_live()
                ending = self._push_tokens(tokens, is_end)
        self._finish_with(ending)

    def expire(self, now: float) -> None:
        """Close the session if it still waits for text and its client has been silent for too long."""
        with self._lock:
            if self._text_ended or now < self._deadline or not self._mark_closed():
                return
        self._release(SessionTimeoutError("No text arrived for too long and the session was closed; start it again.", self.session_id))

    def finish(self, message: Message) -> bool:
        """End the session with ``message`` unless it has ended, and free everything. Returns whether this call ended it."""
        with self._lock:
            if not self._mark_closed():
                return False
        self._release(message)
        return True

    # -- the engine's side (TurnSink) --------------------------------------------------------------------------------

    def on_ids(self, ids: Sequence[int]) -> None:
        with self._lock:
            if self._closed or self._turn_ids is None:
                return
            self._turn_ids.extend(ids)
            speech = tuple(self._space.speech_token(token_id) for token_id in ids if self._space.is_speech(token_id))
            self._emit(SpeechTokens(speech, self._text_consumed()))

    def on_end(self, result: TurnResult) -> None:
        ending: Message | None
        with self._lock:
            if self._closed or self._turn_ids is None:
                return
            assert self._layout is not None
            ids, self._turn_ids = self._turn_ids, None
            self._engine_error = result.error
            try:
                self._layout.turn_ended(ids, result)
                ending = self._pump()
                if ending is None and self._turn_ids is None:
                    self._emit(SpeechTokens((), self._text_consumed(), is_resting=True))
            except BistreamError as error:
                ending = error
            except Exception:  # a bug; the client must still receive an end
                logger.exception("session %s failed", self.session_id)
                ending = EngineError("The server failed while it worked on this session; try again.", self.session_id)
        self._finish_with(ending)

    # -- inside: the text, with the text lock held or before the session is open ----------------------------------------

    def _check_length(self, text: bytes) -> None:
        try:
            check_text_length(self._num_chars + count_characters(text), self._max_text_chars)
        except InvalidInputError as error:
            error.session_id = self.session_id
            raise

    def _encode(self, text: bytes, is_end: bool) -> list[TextToken]:
        self._check_length(text)
        tokens = self._text_in.push(text)
        self._num_chars += count_characters(text)
        if is_end:
            tokens += self._text_in.finish()
            if self._num_chars == 0:
                raise InvalidInputError("The whole text is empty; send text to speak.", self.session_id)
        return tokens

    # -- inside, with the lock held ----------------------------------------------------------------------------------

    def _check_live(self) -> None:
        if self._closed or self._layout is None:
            raise unknown_session(self.session_id)

    def _push_tokens(self, tokens: list[TextToken], is_end: bool) -> Message | None:
        assert self._layout is not None
        self._end_chars += [token.end_char for token in tokens]
        self._layout.push_text([token.id for token in tokens])
        if is_end:
            self._text_ended = True
            self._layout.end_text()
        return self._pump()

    def _pump(self) -> Message | None:
        """Start the next turn if one is ready and none is in flight. Returns the session's end, if it has ended."""
        assert self._layout is not None and self._sequence is not None
        if self._turn_ids is None and not self._closed and (turn := self._layout.next_turn()) is not None:
            self._turn_ids = []
            try:
                self._sequence.turn(turn.append_ids, turn.limits, self)
            except BistreamError as error:
                return error
        return self._ending()

    def _ending(self) -> Message | None:
        assert self._layout is not None
        reason = self._layout.finish_reason
        if reason is None:
            return None
        if reason is FinishReason.CANCELLED:  # by the engine: a session that this class cancels is already closed
            return ShuttingDownError("The server is shutting down; use another one.", self.session_id)
        if reason is FinishReason.ERROR:
            return EngineError(self._engine_error or "The language model failed; try again later.", self.session_id)
        return SpeechTokens((), self._num_chars if reason is FinishReason.EOS else self._text_consumed(), reason)

    def _text_consumed(self) -> int:
        """Lower bound of the characters spoken by the speech tokens so far.

        A text token takes at most ``MAX_SPEECH_TOKENS_PER_TEXT_TOKEN`` (20) speech tokens, so n of them speak at least n / 20
        of the text tokens fed so far. When the session ends with eos, all text is spoken.
        """
        assert self._layout is not None
        num_speech = self._layout.num_speech_of_text
        if self._layout.num_text_used and self._turn_ids is not None:
            num_speech += len(self._turn_ids)
        num_text = min(num_speech // MAX_SPEECH_TOKENS_PER_TEXT_TOKEN, self._layout.num_text_used)
        return self._end_chars[num_text - 1] if num_text else 0

    def _mark_closed(self) -> bool:
        """Stop all further calls and turns. False if the session was closed already, or is not open yet and needs no end message."""
        was_open = not self._closed and self._sequence is not None
        self._closed = True
        return was_open

    # -- inside, without the lock where possible ---------------------------------------------------------------------

    def _finish_with(self, ending: Message | None) -> None:
        if ending is not None:
            if isinstance(ending, BistreamError):
                ending.session_id = ending.session_id or self.session_id
            self.finish(ending)

    def _release(self, message: Message) -> None:
        """Free everything before sending the end, so that its receiver can start again at once."""
        assert self._sequence is not None
        self._sequence.close()
        self._on_closed(self)
        self._emit(message)

    def _emit(self, message: Message) -> None:
        try:
            self._sink(message)
        except Exception:
            logger.exception("the sink of session %s raised; the session continues without this message", self.session_id)


def unknown_session(session_id: str) -> UnknownSessionError:
    return UnknownSessionError("No live session has this id (never started, finished or cancelled); start a new session.", session_id)
