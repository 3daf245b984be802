"""One session's connection to the language model: its text goes there, its speech tokens come back.

The *reader* thread takes the tokens and does nothing else, so that they never wait for a hop. Text, lease renewals and the
cancel leave through ``deliver``, which the delivery pool calls, never two at a time for one session.
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

LANGUAGE_MODEL = "language model"  # the name under which a session owns its place there
ACCEPT_TIMEOUT_S = 10.0  # an append can overtake the start it follows; it is repeated for this long
RENEWALS_PER_LEASE = 3


def unexpected(session: CallerSession) -> EngineError:
    """Log the exception being handled; what the client is told instead."""
    logger.exception("session %s failed", session.id or session.port_id)
    return EngineError("The server failed while it worked on this session; try again.")


def from_model(error: BistreamError) -> BistreamError:
    """What the client is told of a model's error: what it says about our id for the session means nothing to the client."""
    if isinstance(error, UnknownSessionError | SessionExistsError | CancelledError):
        return EngineError("The server lost this session; try again.")
    return error


class LanguageModelLink:
    """Holds no reference to who runs the session: nothing may keep a session's audio and recording once it is over."""

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
        self._accepts_text = False  # the start is on its way, or has arrived
        self._heard_at = 0.0  # when the language model last heard of the session
        self._refused_since: float | None = None  # it does not know the session (yet)

    def open(
        self, prompt: VoicePrompt, wanted_tokens: Callable[[], int], started: Callable[[], None], on_error: Callable[[BistreamError], None]
    ) -> None:
        """Start the reader, with the session's condition held.

        The reader calls ``wanted_tokens`` (as of ``LanguageModelPort.stream``), ``started`` once text can be delivered, and ``on_error``
        with what ends the session.
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

        The start brings the text of the first request alone: whether that is the whole text decides the layout, and must not
        depend on what else has come while the voice was prepared.
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
            self._heard_at = self._clock()
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

    # The way out

    def is_due(self, now: float) -> bool:
        """Whether time alone asks for a delivery: a lease to renew, text to repeat. With the session's condition held."""
        return self._refused_since is not None or self._renewal_is_due(now)

    def _renewal_is_due(self, now: float) -> bool:
        session = self._session
        waits_for_text = self._accepts_text and not session.text.ended and session.finish_reason is None
        return waits_for_text and now - self._heard_at >= self._renew_after_s

    def deliver(self) -> None:
        """Send the text that waits, or renew the lease when that is due. Blocks as the port does; what it raises ends the session."""
        session = self._session
        with session.condition:
            now = self._clock()
            if not self._accepts_text or session.has_ended or session.finish_reason is not None:
                return
            piece, is_end = session.take_text()
            if not piece and not is_end and not self._renewal_is_due(now):
                return
            self._heard_at = now
        try:
            self._port.append(session.port_id, piece, is_end)
        except UnknownSessionError:
            self._not_accepted(piece, is_end, now)
        else:
            with session.condition:
                self._refused_since = None

    def _not_accepted(self, piece: bytes, is_end: bool, now: float) -> None:
        """The start has not arrived yet, or the session is over and the reader will hear why; else it is lost."""
        session = self._session
        with session.condition:
            session.put_text_back(piece, is_end)
            if self._refused_since is None:
                self._refused_since = now
            is_lost = now - self._refused_since >= ACCEPT_TIMEOUT_S
        if is_lost:
            raise EngineError("The language model does not know this session any more; try again.")
