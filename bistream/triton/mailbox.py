"""Speech tokens of one session that wait until the calling model asks for them.

``llm_bistream`` answers a sibling only with single responses: a stream of several can lock up the caller's process for good (see
``bls_ports.BlsClient.ask``). So the messages of a session are gathered here, and whoever asks gets what has come, at once or as
soon as there is something. Any thread; used by the ``model.py`` of ``llm_bistream``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from bistream.errors import BistreamError, InvalidInputError, UnknownSessionError
from bistream.types import FinishReason, SpeechTokens

Message = SpeechTokens | BistreamError
Answer = Callable[[Message], None]


class TokenMailbox:
    """``post`` is the sink of a session. An answer is one message: all tokens that have come, or the error that ended the session."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._token_ids: list[int] = []
        self._text_consumed = 0
        self._finish_reason: FinishReason | None = None
        self._error: BistreamError | None = None
        self._waiting: Answer | None = None
        self._drained = False

    @property
    def has_ended(self) -> bool:
        """Nothing will be posted any more; something may be left to take."""
        return self._error is not None or self._finish_reason is not None

    @property
    def is_drained(self) -> bool:
        """The end was taken."""
        return self._drained

    def post(self, message: Message) -> None:
        with self._lock:
            if isinstance(message, BistreamError):
                self._error = message
            else:
                self._token_ids.extend(message.token_ids)
                self._text_consumed = message.text_consumed
                self._finish_reason = message.finish_reason
            answer, taken = self._waiting, self._taken() if self._waiting else None
            if taken is not None:
                self._waiting = None
        if answer is not None and taken is not None:
            answer(taken)

    def take(self, answer: Answer) -> None:
        """``answer`` is called once, now or by a later ``post``. Raises ``UnknownSessionError`` behind the end, ``InvalidInputError``
        while another one waits."""
        with self._lock:
            if self._drained:
                raise UnknownSessionError("This session has ended and its end was taken; start another one.")
            if self._waiting is not None:
                raise InvalidInputError("A request for this session's tokens is waiting already; wait for its answer.")
            taken = self._taken()
            if taken is None:
                self._waiting = answer
        if taken is not None:
            answer(taken)

    def _taken(self) -> Message | None:
        """What an answer carries now; tokens go before the error that came after them."""
        if self._token_ids or self._finish_reason is not None:
            message = SpeechTokens(tuple(self._token_ids), self._text_consumed, self._finish_reason)
            self._token_ids.clear()
            self._drained = self._finish_reason is not None
            return message
        if self._error is not None:
            self._drained = True
        return self._error
