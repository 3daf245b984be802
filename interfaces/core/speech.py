"""One utterance: text in pieces in, audio out, spoken by one session of a server after another. Owned by one event loop.

A server speaks the last words of a text when it knows that the text ends there. So a *segment* of the utterance, the text up to a flush
or up to a pause of ``speak_after_s``, is a session of its own; the next one begins with the text that comes afterwards, in the same voice,
when all audio of the segment is here. An utterance therefore takes one place on the servers, and none while it waits for text.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bistream.client.exchange import Chunk
from bistream.errors import BistreamError, CancelledError, InvalidInputError
from bistream.rates import SAMPLE_RATE
from bistream.refusals import nothing_to_speak
from interfaces.core.errors import UnreachableError
from interfaces.core.record import SpeechRecord
from interfaces.core.servers import Server, Servers, as_answer, may_go_elsewhere
from interfaces.core.session import ServerSession
from interfaces.core.text import PieceJoiner, is_speakable
from interfaces.core.trace import Trace
from interfaces.core.voices import Voice

SILENCE_S = 0.1  # in place of text without anything to speak
_OVER = "The utterance is over; start another one for more text."


@dataclass(frozen=True)
class Audio:
    """samples: float32 [N], 24 kHz mono. In characters of the utterance, as the client sent them, when these samples have been played:
    text_consumed are certainly spoken; text_position, an estimate, is where the voice is (None: of a server that does not tell)."""

    samples: NDArray[np.float32]
    text_consumed: int
    text_position: int | None = None


@dataclass(frozen=True)
class Flushed:
    """All audio of the text before a ``flush`` has come."""


@dataclass(frozen=True)
class SpeechOptions:
    """values: seed, temperature, top_k, top_p, speed, by their names in the wire contract. speed: needs the whole text at once."""

    values: dict[str, int | float] = field(default_factory=dict)
    speak_after_s: float = 0.0  # 0: only what a flush or the end asks for

    @property
    def wants_whole_text(self) -> bool:
        return self.values.get("speed", 1.0) != 1.0


@dataclass
class _Segment:
    """text: all of it so far."""

    text: str = ""
    is_ended: bool = False
    is_announced: bool = False  # its end is told to the client: a flush
    session: ServerSession | None = None


class Speech:
    """``append``, ``flush``, ``end`` at any time; iterate once for the audio; ``close`` frees everything, whatever the state."""

    def __init__(
        self,
        servers: Servers,
        voice: Voice,
        options: SpeechOptions,
        max_text_chars: int,
        on_close: Callable[[], None] = lambda: None,
        trace: Trace | None = None,
    ) -> None:
        self.voice = voice
        self.trace = trace or Trace()
        self.record = SpeechRecord()
        self._servers = servers
        self._options = options
        self._max_text_chars = max_text_chars
        self._on_close = on_close
        self._joiner = PieceJoiner()
        self._segments: deque[_Segment] = deque()
        self._spoken_before = 0  # characters of the segments that are over
        self._changed = asyncio.Event()
        self._has_ended = False  # no more text
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._speak_at = 0.0  # if nothing comes until then

    @property
    def characters(self) -> int:
        """Received so far."""
        return self._joiner.received

    @property
    def has_ended(self) -> bool:
        return self._has_ended or self._is_closed

    async def append(self, piece: str) -> None:
        """More text, cut anywhere. Raises ``InvalidInputError`` beyond the limit, ``CancelledError`` after the end."""
        if self.has_ended:
            raise CancelledError(_OVER)
        if self._joiner.received + len(piece) > self._max_text_chars:
            raise InvalidInputError(f"The text is longer than {self._max_text_chars} characters; split it into several requests.")
        self.record.on_text()
        await self._add(self._joiner.push(piece))
        self._restart_timer()

    async def flush(self) -> None:
        """What is there is spoken to its end; the iteration yields ``Flushed`` behind it."""
        if not self.has_ended:
            await self._add(self._joiner.finish())
            await self._end_segment(is_announced=True)

    async def end(self, piece: str = "") -> None:
        """No more text; the iteration ends when all is spoken. Raises as ``append`` does."""
        if self.has_ended:
            return
        if piece:
            await self.append(piece)
        await self._add(self._joiner.finish())
        self._has_ended = True
        await self._end_segment(is_announced=False)

    async def close(self) -> None:
        """Stops at once. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._stop_timer()
        self._changed.set()
        sessions = [segment.session for segment in self._segments if segment.session is not None]
        try:
            for session in sessions:
                session.close()
        finally:
            self._on_close()

    async def __aiter__(self) -> AsyncGenerator[Audio | Flushed, None]:
        """Raises ``BistreamError``: of the server, or ``CancelledError`` after ``close``."""
        try:
            async with contextlib.aclosing(self._all_segments()) as parts:
                async for part in parts:
                    yield part
            self.record.reason = "eos"
        except BistreamError as error:
            self.record.reason = error.code.lower()
            raise

    async def _all_segments(self) -> AsyncGenerator[Audio | Flushed, None]:
        while (segment := await self._next_segment()) is not None:
            async with contextlib.aclosing(self._speak(segment)) as chunks:
                async for chunk in chunks:
                    self.record.on_audio(len(chunk.waveform) / SAMPLE_RATE)
                    position = None if chunk.text_position is None else self._heard(segment, chunk.text_position)
                    yield Audio(chunk.waveform, self._heard(segment, chunk.text_consumed), position)
            self._spoken_before += len(segment.text)
            self._segments.popleft()
            if segment.is_announced:
                yield Flushed()

    def _heard(self, segment: _Segment, spoken: int) -> int:
        """Characters of the utterance, given those of the segment that is spoken now."""
        return self._joiner.heard(self._spoken_before + min(spoken, len(segment.text)))

    async def _next_segment(self) -> _Segment | None:
        """The oldest one, once it can be spoken or has ended; None: all is spoken."""
        while True:
            if self._is_closed:
                raise CancelledError("The utterance was cancelled.")
            if self._segments:
                first = self._segments[0]
                if first.is_ended or (is_speakable(first.text) and not self._options.wants_whole_text):
                    return first
            elif self._has_ended:
                return None
            self._changed.clear()
            await self._changed.wait()

    async def _speak(self, segment: _Segment) -> AsyncGenerator[Chunk, None]:
        """On one server, or on another one where the first refuses before any audio."""
        if segment.is_ended and not is_speakable(segment.text):
            if segment.text.strip():
                yield _silence(len(segment.text))
            return
        tried: list[Server] = []
        refusal: BaseException | None = None
        while (server := self._servers.choose(tried)) is not None:
            tried.append(server)
            try:
                async with contextlib.aclosing(self._speak_on(server, segment)) as chunks:
                    async for chunk in chunks:
                        tried = self._servers.all  # what is heard is not said again elsewhere
                        yield chunk
                return
            except (BistreamError, ConnectionError, TimeoutError, OSError) as error:
                if self._is_closed:
                    raise CancelledError("The utterance was cancelled.") from None
                self._servers.refused(server, error)
                refusal = error
                if isinstance(error, InvalidInputError) and error.sentence == nothing_to_speak().sentence:
                    yield _silence(len(segment.text))  # marks that only the server knows as such
                    return
                if not may_go_elsewhere(error):
                    break
        raise as_answer(refusal) if refusal is not None else UnreachableError("There is no speech server; start one.")

    async def _speak_on(self, server: Server, segment: _Segment) -> AsyncGenerator[Chunk, None]:
        server.open_sessions += 1
        try:
            call = await server.open_stream(self.trace)
            if self._is_closed:  # while the connection was made
                call.cancel()
                raise CancelledError("The utterance was cancelled.")
            # Nothing waits from here to the assignment: a piece is in the text of the start, or is pushed.
            session = server.session(call, self.trace, self.voice, segment.text, segment.is_ended, self._options.values)
            self.record.sessions.append(session.session_id)
            async with session:
                segment.session = session
                async for chunk in session:
                    yield chunk
        finally:
            segment.session = None
            server.open_sessions -= 1

    async def _add(self, text: str) -> None:
        if not text:
            return
        if not self._segments or self._segments[-1].is_ended:
            self._segments.append(_Segment())
        segment = self._segments[-1]
        segment.text += text
        if segment.session is None:
            self._changed.set()
        else:
            with contextlib.suppress(BistreamError, ConnectionError):  # the iteration raises it
                segment.session.push_text(text)

    async def _end_segment(self, is_announced: bool) -> None:
        self._stop_timer()
        if is_announced and (not self._segments or self._segments[-1].is_ended):
            self._segments.append(_Segment())
        if self._segments and not self._segments[-1].is_ended:
            segment = self._segments[-1]
            segment.is_ended, segment.is_announced = True, is_announced
            if segment.session is not None:
                with contextlib.suppress(BistreamError, ConnectionError):
                    segment.session.end_text()
        self._changed.set()

    def _restart_timer(self) -> None:
        """The timer runs on and looks at the time when it rings: one for each piece would cost more than the piece."""
        speak_after_s = self._options.speak_after_s
        if speak_after_s <= 0 or not self._segments or not is_speakable(self._segments[-1].text):
            self._stop_timer()
            return
        loop = asyncio.get_running_loop()
        self._speak_at = loop.time() + speak_after_s
        if self._timer is None:
            self._timer = loop.call_at(self._speak_at, self._ring)

    def _ring(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() < self._speak_at:
            self._timer = loop.call_at(self._speak_at, self._ring)
        else:
            self._pause()

    def _pause(self) -> None:
        """Nothing has come for a while: what is there is spoken. A held blank stays held, because more text may follow."""
        self._timer = None
        if self._segments and not self._segments[-1].is_ended and not self.has_ended:
            task = asyncio.ensure_future(self._end_segment(is_announced=False))
            task.add_done_callback(lambda done: done.exception())

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _silence(text_consumed: int) -> Chunk:
    return Chunk(np.zeros(round(SILENCE_S * SAMPLE_RATE), np.float32), 0, text_consumed, 0.0)
