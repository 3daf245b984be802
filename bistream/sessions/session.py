"""A caller's session: its state and legal transitions, the text and tokens it still has to pass on, and the resources to free at its end.

Decides nothing about timing or hops; ``orchestrator.py`` and ``speaking.py`` drive it, in the orchestrator's event loop alone.

    OPENING ──▶ RECEIVING ◀──▶ SPEAKING
                    └──▶ FINISHING ◀──┘        any of the four ──▶ CANCELLED, FAILED
                             └──▶ CLOSED
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from bistream.errors import BistreamError, CancelledError, UnknownSessionError
from bistream.sessions.ports import AudioSender, SessionKey
from bistream.sessions.request_checks import SessionStart, TextLedger
from bistream.types import AudioChunk, FinishReason, SpeechBreak, SpeechTokens

logger = logging.getLogger(__name__)


class SessionState(enum.Enum):
    OPENING = "opening"  # admitted; the voice is being prepared, the language model has not been started
    RECEIVING = "receiving"  # text may still come; no hop is due
    SPEAKING = "speaking"  # text may still come; a hop is being rendered
    FINISHING = "finishing"  # the text has ended; the rest is being spoken
    CLOSED = "closed"  # all audio was sent
    CANCELLED = "cancelled"  # the client cancelled or disconnected
    FAILED = "failed"  # ended by an error, a timeout or the server's shutdown; the client was notified


ENDED = frozenset({SessionState.CLOSED, SessionState.CANCELLED, SessionState.FAILED})


class Reply:
    """Owns the sender of a start request: finishes it exactly once and sends nothing afterwards."""

    def __init__(self, sender: AudioSender) -> None:
        self._sender = sender
        self._finished = False

    async def send(self, chunk: AudioChunk) -> bool:
        """False: the reply was already finished and the chunk was not sent."""
        if self._finished:
            return False
        await self._sender.send(chunk)
        return True

    def finish(self, error: BistreamError | None) -> None:
        if not self._finished:
            self._finished = True
            self._sender.finish(error)

    def is_cancelled(self) -> bool:
        """Blocks as the sender does; the only method for any thread."""
        return not self._finished and self._sender.is_cancelled()


class CallerSession:
    """port_id: the session's id at the language model and token2wav. It is our own, so that a client may reuse its id immediately,
    while its previous session is still being closed.
    """

    def __init__(self, start: SessionStart, text: TextLedger, port_id: str, sender: AudioSender, now: float) -> None:
        self.start = start
        self.text = text
        self.port_id = port_id
        self.reply = Reply(sender)
        self.state = SessionState.OPENING
        self.error: BistreamError | None = None  # set in CANCELLED and FAILED
        self.speed = start.speed
        self.reserved_s: float | None = None  # as in ``load.SessionLoad``
        self.last_activity_at = now  # last text of the client that can be spoken, or last audio of such text sent to it
        # text of later requests that the language model has not received yet
        self.outbox = bytearray()
        self.outbox_end = False
        # speech tokens received but not yet sent to token2wav
        self.tokens: list[int] = []
        self._tokens_received = 0
        # numbers of tokens at which a break begins, and at which its filling ends (None)
        self.break_edges: deque[tuple[int, SpeechBreak | None]] = deque()
        self.finish_reason: FinishReason | None = None
        self.last_message = SpeechTokens(())  # of the language model
        self._changed = asyncio.Event()
        self._owned: dict[str, Callable[[], Awaitable[None]]] = {}
        self._freeing = asyncio.Lock()

    @property
    def id(self) -> str | None:
        return None if self.key is None else self.key.session_id

    @property
    def key(self) -> SessionKey | None:
        return self.start.key

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    @property
    def needs_language_model(self) -> bool:
        """Whether speech tokens of it are still to come."""
        return self.finish_reason is None and self.start.source_wav is None

    def advance(self, new: SessionState) -> None:
        """By an arrow of the diagram above."""
        assert not self.has_ended, f"from {self.state.value} to {new.value}"
        self.state = new
        self.wake()

    def wake(self) -> None:
        """Have the session's speaker check again what it waits for."""
        self._changed.set()

    async def changed(self) -> None:
        """Wait for the next ``wake``. Called by the session's speaker alone, right after it found that it must wait."""
        self._changed.clear()
        await self._changed.wait()

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

    def audio_sent(self, characters_before: int, now: float) -> None:
        """characters_before: how many had certainly been spoken before this audio.

        What is spoken beyond the last word does not count as activity: many blanks become tokens, and a client that sends nothing else
        could hold its place for ever.
        """
        if characters_before < self.text.speakable_characters:
            self.last_activity_at = now

    def finishing(self) -> None:
        """The client's text has ended. A session that is still opening enters FINISHING once it has opened."""
        if self.state in (SessionState.RECEIVING, SessionState.SPEAKING):
            self.advance(SessionState.FINISHING)

    def add_text(self, piece: bytes, is_end: bool, now: float) -> None:
        """Raises ``UnknownSessionError`` where the model takes no more, and ``InvalidInputError`` for a bad piece, which changes nothing.

        Only text that can be spoken counts as activity: a client that sends nothing else would keep its place for ever.
        """
        if self.finish_reason is not None and not self.text.ended:
            raise UnknownSessionError("This session has reached its length limit and takes no more text; start another one.")
        if self.text.accept(piece, is_end) or is_end:
            self.last_activity_at = now
        self.outbox += piece
        self.outbox_end = is_end
        if is_end:
            self.finishing()

    def take_text(self) -> tuple[bytes, bool]:
        """All text pending for the language model as one piece, and whether it is the last."""
        taken = bytes(self.outbox), self.outbox_end
        self.outbox.clear()
        self.outbox_end = False
        return taken

    def end_early(self, error: BistreamError) -> bool:
        """CANCELLED for a ``CancelledError``, else FAILED. False: the session had ended already."""
        if self.has_ended:
            return False
        self.error = error.renewed(self.id)
        self.advance(SessionState.CANCELLED if isinstance(error, CancelledError) else SessionState.FAILED)
        return True

    def take_message(self, message: SpeechTokens) -> None:
        for one in message.breaks:
            begin = self._tokens_received + one.place
            self.break_edges += ((begin, one), (begin + one.tokens, None))
        self._tokens_received += len(message.token_ids)
        self.tokens.extend(message.token_ids)
        self.last_message = message
        if message.finish_reason is not None:
            self.finish_reason = message.finish_reason
            self.finishing()
        self.wake()

    def take_tokens(self, count: int) -> tuple[int, ...]:
        taken = tuple(self.tokens[:count])
        del self.tokens[:count]
        return taken

    def is_idle(self, now: float, timeout_s: float) -> bool:
        """Whether text may still come, everything received has been spoken, and nothing that can be spoken has come, nor audio of it
        gone, for ``timeout_s``."""
        return self.state is SessionState.RECEIVING and now - self.last_activity_at >= timeout_s

    def own(self, name: str, free: Callable[[], Awaitable[None]]) -> None:
        """From now on ``free`` calls this, unless ``disown`` reports that the resource has freed itself."""
        assert not self.has_ended, "owned after the end"
        self._owned[name] = free

    def disown(self, name: str) -> None:
        self._owned.pop(name, None)

    def owns(self, name: str) -> bool:
        return name in self._owned

    async def free(self) -> None:
        """Free everything that is owned, the last first; returns when all of it is freed, whoever began. Never raises."""
        async with self._freeing:
            owned, self._owned = self._owned, {}
            await asyncio.gather(*(self._free(name, free) for name, free in reversed(owned.items())))

    async def _free(self, name: str, free: Callable[[], Awaitable[None]]) -> None:
        try:
            await free()
        except BistreamError as error:
            logger.warning("session %s: %s could not be freed: %s", self.port_id, name, error)
        except Exception:
            logger.exception("session %s: %s could not be freed", self.port_id, name)
