"""A caller's session: its state and legal transitions, the text and tokens it still has to pass on, and the resources to free at its end.

Decides nothing about timing or hops; ``orchestrator.py`` and ``speaking.py`` drive it from several threads, under its condition.

    OPENING ──▶ RECEIVING ◀──▶ SPEAKING
                    └──▶ FINISHING ◀──┘        any of the four ──▶ CANCELLED, FAILED
                             └──▶ CLOSED
"""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable

from bistream.errors import BistreamError, CancelledError, UnknownSessionError
from bistream.orchestration.admission import SessionStart, TextLedger
from bistream.orchestration.ports import AudioSender
from bistream.types import AudioChunk, FinishReason, SpeechTokens

logger = logging.getLogger(__name__)


class SessionState(enum.Enum):
    OPENING = "opening"  # admitted; the voice is being prepared, the language model has not been started
    RECEIVING = "receiving"  # text may still come; no hop is due
    SPEAKING = "speaking"  # text may still come; a hop is being rendered
    FINISHING = "finishing"  # the text has ended; the rest is being spoken
    CLOSED = "closed"  # all audio was sent
    CANCELLED = "cancelled"  # the client cancelled or disconnected
    FAILED = "failed"  # ended by an error, a timeout or the server's shutdown; the client was notified


_LEGAL: dict[SessionState, frozenset[SessionState]] = {
    SessionState.OPENING: frozenset({SessionState.RECEIVING, SessionState.CANCELLED, SessionState.FAILED}),
    SessionState.RECEIVING: frozenset({SessionState.SPEAKING, SessionState.FINISHING, SessionState.CANCELLED, SessionState.FAILED}),
    SessionState.SPEAKING: frozenset({SessionState.RECEIVING, SessionState.FINISHING, SessionState.CANCELLED, SessionState.FAILED}),
    SessionState.FINISHING: frozenset({SessionState.CLOSED, SessionState.CANCELLED, SessionState.FAILED}),
    SessionState.CLOSED: frozenset(),
    SessionState.CANCELLED: frozenset(),
    SessionState.FAILED: frozenset(),
}
ENDED = frozenset({SessionState.CLOSED, SessionState.CANCELLED, SessionState.FAILED})


class IllegalTransition(RuntimeError):
    """An internal error: the session's state does not allow this transition."""


def transition(current: SessionState, new: SessionState) -> SessionState:
    """``new``; raises ``IllegalTransition`` if the diagram above has no such arrow."""
    if new not in _LEGAL[current]:
        raise IllegalTransition(f"a session cannot go from {current.value} to {new.value}")
    return new


class Reply:
    """Owns the sender of a start request, finishes it exactly once and never uses it afterwards, whichever threads call."""

    def __init__(self, sender: AudioSender) -> None:
        self._sender = sender
        self._lock = threading.Lock()
        self._finished = False

    def send(self, chunk: AudioChunk) -> bool:
        """False: the reply was already finished and the chunk was not sent."""
        with self._lock:
            if not self._finished:
                self._sender.send(chunk)
            return not self._finished

    def finish(self, error: BistreamError | None) -> None:
        with self._lock:
            if not self._finished:
                self._finished = True
                self._sender.finish(error)

    def is_cancelled(self) -> bool:
        with self._lock:
            return not self._finished and self._sender.is_cancelled()


class CallerSession:
    """State shared by the threads that serve one caller. Fields are read and written with ``condition`` held.

    port_id: the session's id at the language model and token2wav. It is our own, so that a client may reuse its id immediately,
    while its previous session is still being closed.
    """

    def __init__(self, start: SessionStart, text: TextLedger, port_id: str, sender: AudioSender, now: float) -> None:
        self.start = start
        self.text = text
        self.port_id = port_id
        self.reply = Reply(sender)
        self.condition = threading.Condition()
        self.state = SessionState.OPENING
        self.error: BistreamError | None = None  # set in CANCELLED and FAILED
        self.last_activity_at = now  # last request from the client or last audio sent to it
        # text of later requests that the language model has not received yet
        self.outbox = bytearray()
        self.outbox_end = False
        # speech tokens received but not yet sent to token2wav
        self.tokens: list[int] = []
        self.finish_reason: FinishReason | None = None
        self._owned: dict[str, Callable[[], None]] = {}
        self._closed = False

    @property
    def id(self) -> str | None:
        return self.start.session_id

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    def advance(self, new: SessionState) -> None:
        self.state = transition(self.state, new)
        self.condition.notify_all()

    def speaking(self, is_speaking: bool) -> None:
        """A hop begins, or none is due. No effect in FINISHING and after the end."""
        new = SessionState.SPEAKING if is_speaking else SessionState.RECEIVING
        if self.state in (SessionState.RECEIVING, SessionState.SPEAKING) and self.state is not new:
            self.advance(new)

    def opened(self, now: float) -> None:
        """The voice is ready; preparing it does not count as idle time."""
        self.last_activity_at = now
        self.advance(SessionState.RECEIVING)
        if self.text.ended:
            self.finishing()

    def finishing(self) -> None:
        """No more text will be spoken. A session that is still opening enters FINISHING once it has opened."""
        if self.state in (SessionState.RECEIVING, SessionState.SPEAKING):
            self.advance(SessionState.FINISHING)

    def add_text(self, piece: bytes, is_end: bool, now: float) -> None:
        """Raises ``UnknownSessionError`` after the end and ``InvalidInputError`` for a bad piece, which changes nothing."""
        if self.has_ended or self.finish_reason is not None:
            raise UnknownSessionError("This session has ended; start another one.")
        self.text.accept(piece, is_end)
        self.outbox += piece
        self.outbox_end = is_end
        self.last_activity_at = now
        if is_end:
            self.finishing()

    def take_text(self) -> tuple[bytes, bool]:
        """All text pending for the language model as one piece, and whether it is the last."""
        taken = bytes(self.outbox), self.outbox_end
        self.outbox.clear()
        self.outbox_end = False
        return taken

    def put_text_back(self, piece: bytes, is_end: bool) -> None:
        self.outbox[:0] = piece
        self.outbox_end = self.outbox_end or is_end

    def end_early(self, error: BistreamError) -> bool:
        """CANCELLED for a ``CancelledError``, else FAILED. False: the session had ended already."""
        if self.has_ended:
            return False
        self.error = error.renewed(self.id)
        self.advance(SessionState.CANCELLED if isinstance(error, CancelledError) else SessionState.FAILED)
        return True

    def take_message(self, message: SpeechTokens) -> None:
        self.tokens.extend(message.token_ids)
        if message.finish_reason is not None:
            self.finish_reason = message.finish_reason
            self.finishing()
        self.condition.notify_all()

    def take_tokens(self, count: int) -> tuple[int, ...]:
        taken = tuple(self.tokens[:count])
        del self.tokens[:count]
        return taken

    def is_idle(self, now: float, timeout_s: float) -> bool:
        """Whether text may still come, everything received has been spoken, and no text or audio has passed for ``timeout_s``."""
        return self.state is SessionState.RECEIVING and now - self.last_activity_at >= timeout_s

    def own(self, name: str, free: Callable[[], None]) -> None:
        """From now on ``close`` calls ``free``, unless ``disown`` reports that the resource has freed itself."""
        assert not self._closed, "owned after close"
        self._owned[name] = free

    def disown(self, name: str) -> None:
        self._owned.pop(name, None)

    def owns(self, name: str) -> bool:
        return name in self._owned

    def stop(self) -> None:
        """Cancel everything still owned but keep owning it: a cancel may arrive before its start and must then be repeated."""
        with self.condition:
            owned = dict(self._owned)
        self._free(owned)

    def close(self) -> None:
        """Free everything still owned, in reverse order. Idempotent; called after the session's other threads have ended."""
        with self.condition:
            owned, self._owned, self._closed = self._owned, {}, True
        self._free(owned)

    def _free(self, owned: dict[str, Callable[[], None]]) -> None:
        for name, free in reversed(owned.items()):
            try:
                free()
            except BistreamError as error:
                logger.warning("session %s: %s could not be freed: %s", self.port_id, name, error)
            except Exception:
                logger.exception("session %s: %s could not be freed", self.port_id, name)
