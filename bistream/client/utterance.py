"""One text in pieces of a voice agent, with pauses of any length, spoken by one session after another:

    utterance = Utterance(client, Speaker(speaker_id="anna"))
    asyncio.create_task(feed(utterance))     # await utterance.push_text("Hel"); ...; await utterance.end_text()
    async for spoken in utterance:
        play(spoken.waveform)                # float32, at await client.sample_rate()

``segments.py`` says where a session ends and the next one begins. Text that is there as a whole when its session begins is sent as a
whole. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bistream.client.asyncio_client import AsyncBistreamClient
from bistream.client.exchange import Chunk, Heard, silent_chunk
from bistream.client.segmented_text import SegmentedText
from bistream.client.segments import MAX_CHARS, Segment
from bistream.client.speaker import Speaker
from bistream.contract.audio import UPSTREAM_SAMPLE_RATE
from bistream.errors import BistreamError, CancelledError

CANCEL_TIMEOUT_S = 0.5  # for the server's answer to a cancel; the stream is closed in any case
MAX_RETRY_WAIT_S = 5.0  # where a server that is full names a later time
_OVER = "The utterance is over; start another one for more text."


@dataclass(frozen=True)
class Spoken:
    """waveform: float32 [N], mono. At its end, in characters of the utterance: text_consumed is certainly spoken, text_position
    estimates where the voice is (where a server does not tell it: the same number)."""

    waveform: NDArray[np.float32]
    text_consumed: int
    text_position: int


@dataclass(frozen=True)
class Pacing:
    """speak_after_s: a pause in the text after which what is there is spoken to its end; 0: never. answer_timeout_s: for which a server may
    say nothing; None: as the client is set. retry_waits_s: before each new attempt of a segment of which nothing was heard, and which
    failed with an error that may pass. retries_first: also of the first segment, else its error is raised to callers that repeat it all."""

    speak_after_s: float = 2.0
    answer_timeout_s: float | None = None
    retry_waits_s: tuple[float, ...] = ()
    retries_first: bool = True


class Utterance(SegmentedText):
    """``push_text``, ``flush``, ``end_text`` at any time; iterate once for the audio; ``cancel`` or ``close`` ends it in any state."""

    def __init__(self, client: AsyncBistreamClient, speaker: Speaker, pacing: Pacing | None = None, continues: str | None = None) -> None:
        """continues: a session of this client, such as the one that spoke the end of the turn before (its ``spoken``)."""
        self._pacing = pacing or Pacing()
        super().__init__(self._pacing.speak_after_s)
        self.text = ""  # all of it so far
        self.spoken = continues  # the last session that has spoken all of its text; what follows a flush or a pause continues it
        self.heard: Heard | None = None  # after ``cancel``: as of a session, in characters of the utterance
        self._client = client
        self._speaker = speaker
        self._has_spoken = False

    async def push_text(self, piece: str) -> None:
        """More text, cut anywhere; it is sent as it is, and goes on in another session where one cannot take more. Raises
        ``CancelledError`` after the end."""
        if self.has_ended:
            raise CancelledError(_OVER)
        if piece:  # an empty one does not put off the pause
            self.text += piece
            self._add(piece, MAX_CHARS)

    async def flush(self) -> None:
        """What is there is spoken to its end."""
        self._end_segment()

    async def end_text(self, piece: str = "") -> None:
        """No more text; the iteration ends when all is spoken. Idempotent."""
        if piece:
            await self.push_text(piece)
        self._has_ended = True
        await self.flush()

    async def cancel(self) -> None:
        """Stop speaking (barge-in): the server is told, and says how much was heard (``heard``). Then as ``close``."""
        if self._closed.is_set():
            return
        self._has_ended = True
        self._close_text()
        segment = next((one for one in self._segments if one.session is not None), None)
        if segment is None or segment.session is None:
            return
        session = segment.session
        with contextlib.suppress(BistreamError, OSError):  # TimeoutError and ConnectionError are among them
            async with asyncio.timeout(CANCEL_TIMEOUT_S):
                await session.cancel()
                await session.wait_over()
        if session.heard is not None:
            begin = segment.begins_at
            self.heard = Heard(begin + session.heard.text_consumed, begin + session.heard.text_position)
        await session.close()

    async def close(self) -> None:
        """Stops at once, without a word to the server but the end of the stream. Idempotent."""
        self._has_ended = True
        self._close_text()
        await self._close_sessions()

    async def __aiter__(self) -> AsyncGenerator[Spoken, None]:
        """Raises ``BistreamError`` (``CancelledError`` after ``cancel`` and ``close``), ``ConnectionError`` and ``TimeoutError``."""
        while (segment := await self._next_segment()) is not None:
            async with contextlib.aclosing(self._speak(segment)) as chunks:
                async for chunk in chunks:
                    self._has_spoken = True
                    position = chunk.text_consumed if chunk.text_position is None else chunk.text_position
                    yield Spoken(chunk.waveform, segment.place_of(chunk.text_consumed), segment.place_of(position))
            self._segments.pop()
        if self.text and not self._has_spoken:  # blanks
            yield Spoken(self._silence(0).waveform, len(self.text), len(self.text))

    async def _speak(self, segment: Segment) -> AsyncGenerator[Chunk, None]:
        """Again where nothing was heard of it, as ``Pacing`` says."""
        if segment.is_silence:
            if segment.text.strip():
                yield self._silence(len(segment.text))
            return
        waits_s = iter(self._pacing.retry_waits_s if self._has_spoken or self._pacing.retries_first else ())
        is_heard = False
        while True:
            try:
                async with contextlib.aclosing(self._speak_once(segment)) as chunks:
                    async for chunk in chunks:
                        is_heard = True
                        yield chunk
                return
            except (BistreamError, OSError) as error:
                if self._closed.is_set():
                    raise CancelledError("The utterance was cancelled.") from None
                wait_s = None if is_heard or not may_pass(error) else next(waits_s, None)
                if wait_s is None:
                    raise
                wait_s = max(wait_s, retry_after_s(error))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), wait_s)

    def _silence(self, text_consumed: int) -> Chunk:
        """A little shorter or longer where the server's rate is not known yet."""
        return silent_chunk(text_consumed, self._client.told_sample_rate or UPSTREAM_SAMPLE_RATE)

    async def _speak_once(self, segment: Segment) -> AsyncGenerator[Chunk, None]:
        if self._closed.is_set():
            return
        start: dict[str, Any] = self._speaker.arguments()
        session = self._client.start(text=segment.text, is_end=segment.is_ended, continues=self.spoken, **start)
        if (timeout_s := self._pacing.answer_timeout_s) is not None and self._pacing.speak_after_s > 0:
            session.silence_timeout_s = max(timeout_s, 2 * self._pacing.speak_after_s)  # a pause of the text is no silence of the server
        try:
            async with session:
                segment.session = session  # from here on pieces go to it directly
                async for chunk in session:
                    yield chunk
                self.spoken = session.session_id
        finally:
            segment.session = None


def may_pass(error: BaseException) -> bool:
    """Whether the same request may succeed a moment later."""
    return error.retryable if isinstance(error, BistreamError) else isinstance(error, ConnectionError | TimeoutError)


def retry_after_s(error: BaseException) -> float:
    """For which a server that is full asks to wait, at most ``MAX_RETRY_WAIT_S``; 0 where it does not say."""
    return min(error.retry_after_s or 0.0, MAX_RETRY_WAIT_S) if isinstance(error, BistreamError) else 0.0
