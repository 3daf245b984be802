"""One session's connection to the language model: text goes out, speech tokens come back.

The *reader* thread does nothing but take tokens, so that they never wait for a hop. Text and lease renewals go out through
``deliver``, which the delivery pool never runs concurrently for one session; the cancel is registered with the session.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from bistream.errors import BistreamError, CancelledError, EngineError, SessionExistsError, UnknownSessionError
from bistream.orchestration.playback import SpokenText
from bistream.orchestration.ports import LanguageModelPort
from bistream.orchestration.session import CallerSession
from bistream.text2token.service import LanguageModelStart
from bistream.types import FinishReason, VoicePrompt

logger = logging.getLogger(__name__)

LANGUAGE_MODEL = "language model"  # name of this resource in ``CallerSession.own``
ACCEPT_TIMEOUT_S = 10.0  # an append can overtake its start; it is retried for this long
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


class LanguageModelLink:
    """Holds no reference to the ``SessionRun``: nothing may keep a session's audio and recording alive after its end."""

    def __init__(
        self,
        session: CallerSession,
        port: LanguageModelPort,
        spoken: SpokenText,
        lease_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._session = session
        self._port = port
        self._spoken = spoken
        self._renew_after_s = lease_s / RENEWALS_PER_LEASE
        self._clock = clock
        self._reader: threading.Thread | None = None
        self._accepts_text = False  # True from just before the start is sent
        self._contacted_at = 0.0  # last call to the language model
        self._refused_since: float | None = None  # when the language model first rejected the session as unknown

    def open(
        self, prompt: VoicePrompt, wanted_tokens: Callable[[], int], started: Callable[[], None], on_error: Callable[[BistreamError], None]
    ) -> None:
        """Start the reader; the caller holds the session's condition.

        The reader calls ``wanted_tokens`` (see ``LanguageModelPort.stream``), ``started`` once text can be delivered, and ``on_error``
        with the error that ends the session.
        """
        self._session.own(LANGUAGE_MODEL, lambda: self._port.cancel(self._session.port_id))
        name = f"bistream-read-{self._session.port_id[:8]}"
        self._reader = threading.Thread(target=self._read, args=(prompt, wanted_tokens, started, on_error), name=name, daemon=True)
        self._reader.start()

    def join(self) -> None:
        if self._reader is not None:
            self._reader.join()

    # The reader

    def _read(
        self, prompt: VoicePrompt, wanted_tokens: Callable[[], int], started: Callable[[], None], on_error: Callable[[BistreamError], None]
    ) -> None:
        try:
            if not self._read_messages(prompt, wanted_tokens, started):
                raise EngineError("The language model ended the session without a reason; try again.")
        except BistreamError as error:
            on_error(from_model(error))
        except Exception:
            on_error(unexpected(self._session))

    def _read_messages(self, prompt: VoicePrompt, wanted_tokens: Callable[[], int], started: Callable[[], None]) -> bool:
        """False: the stream ended without a final message.

        The start carries the text of the first request alone: whether that is the whole text decides the layout, which must not
        depend on text that arrived while the voice was being prepared.
        """
        session = self._session
        start = LanguageModelStart(
            session_id=session.port_id,
            text=session.start.text,
            is_end=session.start.is_end,
            prompt_text=prompt.prompt_text,
            prompt_speech_tokens=prompt.speech_tokens,
            sampling=session.start.sampling,
        )
        with session.condition:
            if session.has_ended:
                session.disown(LANGUAGE_MODEL)
                return True
            self._accepts_text = True
            self._contacted_at = self._clock()
        messages = self._port.stream(start, wanted_tokens)
        started()
        for message in messages:
            with session.condition:
                if message.is_final:
                    session.disown(LANGUAGE_MODEL)
                if message.finish_reason in (FinishReason.CANCELLED, FinishReason.ERROR):
                    raise EngineError("The language model stopped this session; try again.")
                self._spoken.tokens_came(len(message.token_ids), message.text_consumed)
                session.take_message(message)
            if message.is_final:
                return True
        return False

    # Outgoing

    def is_due(self, now: float) -> bool:
        """Whether a delivery is due by time alone: a lease to renew, text to resend. The caller holds the session's condition."""
        return self._refused_since is not None or self._renewal_is_due(now)

    def _renewal_is_due(self, now: float) -> bool:
        session = self._session
        waits_for_text = self._accepts_text and not session.text.ended and session.finish_reason is None
        return waits_for_text and now - self._contacted_at >= self._renew_after_s

    def deliver(self) -> None:
        """Send pending text, or renew the lease when due. Blocks as the port does; an exception ends the session."""
        session = self._session
        with session.condition:
            now = self._clock()
            if not self._accepts_text or session.has_ended or session.finish_reason is not None:
                return
            piece, is_end = session.take_text()
            if not piece and not is_end and not self._renewal_is_due(now):
                return
            self._contacted_at = now
        try:
            self._port.append(session.port_id, piece, is_end)
        except UnknownSessionError:
            self._not_accepted(piece, is_end, now)
        else:
            with session.condition:
                self._refused_since = None

    def _not_accepted(self, piece: bytes, is_end: bool, now: float) -> None:
        """Retry later: the start may not have arrived, or the session is over and the reader gets the reason. Raises once it is lost."""
        session = self._session
        with session.condition:
            session.put_text_back(piece, is_end)
            if self._refused_since is None:
                self._refused_since = now
            is_lost = now - self._refused_since >= ACCEPT_TIMEOUT_S
        if is_lost:
            raise EngineError("The language model no longer knows this session; try again.")
