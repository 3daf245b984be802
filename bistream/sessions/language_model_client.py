"""One session's connection to the language model: text goes out, speech tokens come back.

The *reader* (``read``) does nothing but take tokens, so that they never wait for a hop. Text and lease renewals go out through
``deliver``, one call at a time: what comes meanwhile leaves together. The cancel is registered with the session.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import numpy as np

from bistream.errors import BistreamError, CancelledError, EngineError, SessionExistsError, UnknownSessionError
from bistream.sessions.playback import SpokenText
from bistream.sessions.ports import LanguageModelPort
from bistream.sessions.session import CallerSession
from bistream.text2token.service import LanguageModelStart
from bistream.types import FinishReason, TokenDemand, VoicePrompt
from bistream.voice.manner import language_prompt

logger = logging.getLogger(__name__)

LANGUAGE_MODEL = "language model"  # name of this resource in ``CallerSession.own``
RENEWALS_PER_LEASE = 3


def unexpected(session: CallerSession) -> EngineError:
    """Log the exception being handled; returns the error for the client."""
    logger.exception("session %s failed", session.id or session.port_id)
    return EngineError("The server failed while processing this session; try again.")


def from_model(error: BistreamError) -> BistreamError:
    """A model's error as the client sees it: errors about our internal session id would mean nothing to the client."""
    if isinstance(error, UnknownSessionError | SessionExistsError | CancelledError):
        return EngineError("The server lost this session; try again.")
    return error


class LanguageModelClient:
    """Holds no reference to the ``SessionRun``: nothing may keep a session's audio and recording alive after its end."""

    def __init__(
        self, session: CallerSession, port: LanguageModelPort, spoken: SpokenText, lease_s: float, clock: Callable[[], float]
    ) -> None:
        self._session = session
        self._port = port
        self._spoken = spoken
        self._renew_after_s = lease_s / RENEWALS_PER_LEASE
        self._clock = clock
        self._accepts_text = False  # True once it has accepted the session
        self._contacted_at = 0.0  # last call to the language model
        self.heard_at = 0.0  # last message from it
        self.unknown_since: float | None = None  # when it said that the session has ended, which the reader should hear at once
        self.is_delivering = False  # at most one call at a time

    async def start(self, prompt: VoicePrompt, tells_speaker: bool = False, continues: str | None = None) -> None:
        """The start carries the text of the first request alone: whether that is the whole text decides the layout, which must not
        depend on text that arrived while the voice was being prepared.

        tells_speaker: the model is told who speaks, in the numbers of the voice. continues: as the model calls that session.
        """
        session = self._session
        if session.has_ended:  # before the reader's task began
            return
        session.own(LANGUAGE_MODEL, lambda: self._port.cancel(session.port_id))
        self._contacted_at = self._clock()
        start = session.start
        told = language_prompt(prompt, start.options.instruct_text, start.is_cross_lingual)
        speaker = prompt.speaker_tokens if tells_speaker else np.zeros(0, np.int32)
        options = replace(start.options, continues=continues)
        await self._port.start(LanguageModelStart(session.port_id, start.text, start.is_end, *told, options, speaker))
        self._accepts_text = True

    async def read(self, demand: Callable[[], TokenDemand]) -> None:
        """Take tokens until the last message. demand: see ``LanguageModelPort.take``. An exception ends the session."""
        session = self._session
        while session.finish_reason is None and not session.has_ended:
            message = await self._port.take(session.port_id, demand())
            self.heard_at = self._clock()
            if message.is_final:
                session.disown(LANGUAGE_MODEL)
            if message.finish_reason in (FinishReason.CANCELLED, FinishReason.ERROR):
                raise EngineError("The language model stopped this session; try again.")
            self._spoken.tokens_came(message)
            session.take_message(message)

    def is_due(self, now: float) -> bool:
        """Whether there is something to deliver: text that waits, or a lease to renew."""
        session = self._session
        if not self._accepts_text or self.is_delivering or self.unknown_since is not None:
            return False
        if session.has_ended or session.finish_reason is not None:
            return False
        return bool(session.outbox) or session.outbox_end or (not session.text.ended and now - self._contacted_at >= self._renew_after_s)

    def deliver(self) -> Coroutine[Any, Any, None]:
        """To be run at once: sends what is due until nothing is. An exception ends the session."""
        self.is_delivering = True
        return self._deliver()

    async def _deliver(self) -> None:
        session = self._session
        try:
            while session.finish_reason is None and not session.has_ended:
                self._contacted_at = self._clock()
                await self._port.append(session.port_id, *session.take_text())
                if not session.outbox and not session.outbox_end:
                    return
        except UnknownSessionError:
            self.unknown_since = self._clock()  # it has just ended there: the reader is told how
        finally:
            self.is_delivering = False
