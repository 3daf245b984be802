"""One utterance: text in pieces in, audio out, spoken by one session of a server after another. Owned by one event loop.

``bistream.client.segments`` says where a session ends and the next one begins; pieces reach a session in the turn of the event loop in
which they come.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bistream.client.exchange import Chunk, silent_chunk
from bistream.client.segmented_text import SegmentedText
from bistream.client.segments import Segment
from bistream.errors import BistreamError, CancelledError, InvalidInputError
from interfaces.core.earlier import EarlierSession
from interfaces.core.errors import UnreachableError
from interfaces.core.record import Ending, SpeechRecord
from interfaces.core.servers import Server, Servers, as_answer, may_go_elsewhere
from interfaces.core.text import Break, Item, PieceJoiner, SpeedChange
from interfaces.core.trace import Trace
from interfaces.core.values import Values
from interfaces.core.voice import Voice

KEPT_CHARS = 256
_OVER = "The utterance is over; start another one for more text."


@dataclass(frozen=True)
class Audio:
    """samples: float32 [N], mono at the servers' rate. In characters of the utterance, as the client sent them, when these samples have
    been played: text_consumed are certainly spoken; text_position, an estimate, is where the voice is (None: of a server that does not
    tell)."""

    samples: NDArray[np.float32]
    text_consumed: int
    text_position: int | None = None


@dataclass(frozen=True)
class Flushed:
    """All audio of the text before a ``flush`` has come."""


@dataclass(frozen=True)
class SpeechOptions:
    values: Values = field(default_factory=dict)
    speak_after_s: float = 0.0  # 0: only what a flush or the end asks for
    continues: EarlierSession | None = None


class Speech(SegmentedText):
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
        super().__init__(options.speak_after_s)
        self.voice = voice
        self.trace = trace or Trace()
        self.record = SpeechRecord()
        self.text_end = ""  # the last characters that came
        self.spoken: EarlierSession | None = None  # the last one that has spoken all of its text; what follows a flush or a pause goes on
        self._servers = servers
        self._options = options
        self._max_text_chars = max_text_chars
        self._on_close = on_close
        self._joiner = PieceJoiner()

    @property
    def characters(self) -> int:
        """Received so far."""
        return self._joiner.received

    async def append(self, piece: Item) -> None:
        """More text, cut anywhere, a break, or the speed of what follows. The text before these is spoken to its end, as before a flush.

        Raises ``InvalidInputError`` beyond the limit, ``CancelledError`` after the end.
        """
        if self.has_ended:
            raise CancelledError(_OVER)
        if not isinstance(piece, str):
            self._apply(piece)
            return
        if self._joiner.received + len(piece) > self._max_text_chars:
            raise InvalidInputError(f"The text is longer than {self._max_text_chars} characters; split it into several requests.")
        self.record.on_text()
        self.text_end = (self.text_end + piece)[-KEPT_CHARS:]
        self._add_spoken(self._joiner.push(piece))

    def _apply(self, control: Break | SpeedChange) -> None:
        self._add_spoken(self._joiner.finish())
        self._end_segment()
        if isinstance(control, Break):
            self._segments.add_break(control.silence_ms)
            self._changed.set()
        else:
            self._segments.speed = control.speed

    async def flush(self) -> None:
        """What is there is spoken to its end; the iteration yields ``Flushed`` behind it."""
        if not self.has_ended:
            self._add_spoken(self._joiner.finish())
            self._end_segment(is_flush=True)

    async def end(self, piece: str = "") -> None:
        """No more text; the iteration ends when all is spoken. Raises as ``append`` does."""
        if self.has_ended:
            return
        if piece:
            await self.append(piece)
        self._add_spoken(self._joiner.finish())
        self._has_ended = True
        self._end_segment()

    async def close(self) -> None:
        """Stops at once. Idempotent. Counts as left by its client unless ``record`` has another ending."""
        if self._closed.is_set():
            return
        self.record.end(Ending.LEFT)
        self._close_text()
        try:
            await self._close_sessions()
        finally:
            self._on_close()

    async def __aiter__(self) -> AsyncGenerator[Audio | Flushed, None]:
        """Raises ``BistreamError``: of the server, or ``CancelledError`` after ``close``."""
        try:
            async with contextlib.aclosing(self._all_segments()) as parts:
                async for part in parts:
                    yield part
            self.record.end(Ending.DONE)
        except BistreamError as error:
            self.record.fail(error)
            raise

    async def _all_segments(self) -> AsyncGenerator[Audio | Flushed, None]:
        while (segment := await self._next_segment()) is not None:
            async with contextlib.aclosing(self._speak(segment)) as chunks:
                async for chunk in chunks:
                    self.record.on_audio(len(chunk.waveform) / self._servers.sample_rate)
                    position = None if chunk.text_position is None else self._heard(segment, chunk.text_position)
                    yield Audio(chunk.waveform, self._heard(segment, chunk.text_consumed), position)
            self._segments.pop()
            if segment.is_flushed:
                yield Flushed()

    def _heard(self, segment: Segment, spoken: int) -> int:
        """Characters of the utterance, given those of the segment that is spoken now."""
        return self._joiner.heard(segment.place_of(spoken))

    async def _speak(self, segment: Segment) -> AsyncGenerator[Chunk, None]:
        """On one server, or on another one where the first refuses before any audio; once more on the first where all streams were lost."""
        if segment.silence_ms:
            yield silent_chunk(0, self._servers.sample_rate, segment.silence_ms / 1000)
            return
        if segment.is_silence:
            if segment.text.strip():
                yield silent_chunk(len(segment.text), self._servers.sample_rate)
            return
        tried: list[Server] = []
        is_heard = False  # and so not said again elsewhere
        refusal: BaseException | None = None
        while True:
            server = self._servers.choose(tried, self.voice.speaker_id)
            if server is None and isinstance(refusal, ConnectionError) and tried.count(tried[0]) == 1:
                server = tried[0]
            if server is None:
                break
            tried.append(server)
            try:
                async with contextlib.aclosing(self._speak_on(server, segment)) as chunks:
                    async for chunk in chunks:
                        is_heard = True
                        yield chunk
                return
            except (BistreamError, ConnectionError, TimeoutError, OSError) as error:
                if self._closed.is_set():
                    raise CancelledError("The utterance was cancelled.") from None
                self._servers.refused(server, error)
                refusal = error
                if is_heard or not may_go_elsewhere(error):
                    break
        raise as_answer(refusal) if refusal is not None else UnreachableError("There is no speech server; start one.")

    async def _speak_on(self, server: Server, segment: Segment) -> AsyncGenerator[Chunk, None]:
        server.open_sessions += 1
        try:
            # Nothing waits from here to the assignment: a piece is in the text of the start, or is pushed.
            values = dict(self._options.values)
            if segment.speed is not None:
                values["speed"] = segment.speed
            earlier = self.spoken or self._options.continues
            if earlier is not None and earlier.server is server:
                values["continues"] = earlier.session_id
            session = server.session(self.trace, self.voice, segment.text, segment.is_ended, values)
            self.record.sessions.append(session.session_id)
            async with session:
                segment.session = session
                async for chunk in session:
                    yield chunk
                self.spoken = EarlierSession(server, session.session_id)
        finally:
            segment.session = None
            server.open_sessions -= 1

    def _add_spoken(self, text: str) -> None:
        """text: without what the joiner holds, because more may follow."""
        self._add(text, self._servers.max_text_chars)
