"""Buffers the speech tokens of one session until the calling model requests them.

An answer costs both processes about as much time as a step of the language model. So the messages of a session are collected here, and
a request for tokens is answered when that is useful: as many as it wants have arrived, or a break, or no more will come for now.
Thread-safe; used by the ``model.py`` of ``llm_bistream``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from bistream.errors import BistreamError, InvalidInputError, UnknownSessionError
from bistream.types import FinishReason, SpeechBreak, SpeechTokens

Message = SpeechTokens | BistreamError
Answer = Callable[[Message], None]


class TokenMailbox:
    """``post`` is the sink of a session. An answer is one message: all tokens received so far, or the error that ended the session."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, on_first_hop: Callable[[float], None] | None = None) -> None:
        """on_first_hop: receives the seconds from the first token until all that the first request wanted are taken, or the last one is."""
        self._clock = clock
        self._on_first_hop = on_first_hop
        self._first_token_at: float | None = None
        self._first_hop_lacks: int | None = None  # tokens; from the first request on
        self._lock = threading.Lock()
        self._token_ids: list[int] = []
        self._breaks: list[SpeechBreak] = []  # among them
        self._is_resting = False
        self._rest_is_told = False
        self._last = SpeechTokens(())  # message
        self._finish_reason: FinishReason | None = None
        self._error: BistreamError | None = None
        self._waiting: Answer | None = None
        self._wanted_tokens = 1  # by the waiting request
        self.is_drained = False  # the last message has been taken

    @property
    def has_ended(self) -> bool:
        """Nothing more will be posted; a message may be left to take."""
        return self._error is not None or self._finish_reason is not None

    @property
    def num_tokens(self) -> int:
        """Those that wait to be taken."""
        return len(self._token_ids)

    def post(self, message: Message) -> None:
        with self._lock:
            if isinstance(message, BistreamError):
                self._error = message
            else:
                if self._first_token_at is None and message.token_ids:
                    self._first_token_at = self._clock()
                if message.breaks:
                    self._breaks += (replace(one, place=len(self._token_ids) + one.place) for one in message.breaks)
                self._token_ids.extend(message.token_ids)
                self._last = message
                self._finish_reason = message.finish_reason
                self._is_resting = message.is_resting
                self._rest_is_told &= message.is_resting
            answer, taken = self._waiting, self._taken() if self._waiting else None
            if taken is not None:
                self._waiting = None
        if answer is not None and taken is not None:
            answer(taken)

    def take(self, answer: Answer, wanted_tokens: int = 1) -> None:
        """``answer`` is called once, now or by a later ``post``: with at least ``wanted_tokens``, fewer at a break, or when no more come
        for now (none, where only that is news).

        Raises ``UnknownSessionError`` after the end, ``InvalidInputError`` while another request is waiting."""
        with self._lock:
            if self.is_drained:
                raise UnknownSessionError("This session has ended and its last message was taken; start another one.")
            if self._waiting is not None:
                raise InvalidInputError("A request for this session's tokens is already waiting; wait for its answer.")
            self._wanted_tokens = wanted_tokens
            if self._first_hop_lacks is None:
                self._first_hop_lacks = wanted_tokens
            taken = self._taken()
            if taken is None:
                self._waiting = answer
        if taken is not None:
            answer(taken)

    def _taken(self) -> Message | None:
        """The message for an answer now, if any; tokens go out before an error that followed them."""
        is_news = self._is_resting and not self._rest_is_told and self._error is None
        if self._finish_reason is not None or is_news or (self._token_ids and self._is_enough()):
            message = self._last._replace(token_ids=tuple(self._token_ids), breaks=tuple(self._breaks))
            self._rest_is_told = self._is_resting
            self._count_first_hop(len(self._token_ids))
            self._token_ids.clear()
            self._breaks.clear()
            self.is_drained = self._finish_reason is not None
            return message
        if self._error is not None:
            self.is_drained = True
        return self._error

    def _count_first_hop(self, taken: int) -> None:
        if self._on_first_hop is None or self._first_token_at is None or self._first_hop_lacks is None:
            return
        self._first_hop_lacks -= taken
        if self._first_hop_lacks <= 0 or self._finish_reason is not None:
            self._on_first_hop(self._clock() - self._first_token_at)
            self._on_first_hop = None

    def _is_enough(self) -> bool:
        return len(self._token_ids) >= self._wanted_tokens or self._is_resting or bool(self._breaks) or self._error is not None
