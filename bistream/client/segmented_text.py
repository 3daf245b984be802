"""A text that comes in pieces, on its way to the sessions that speak its segments. Belongs to one event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from bistream.client.segments import Segment, Segments, room_in
from bistream.errors import BistreamError, CancelledError


class SegmentedText:
    """What the utterances of the client and of the interfaces share; each opens its sessions itself, one segment after another."""

    def __init__(self, speak_after_s: float) -> None:
        """speak_after_s: length of a pause in the text that ends the segment, so that it is spoken to its end; 0: no pause does."""
        self._segments = Segments()
        self._changed = asyncio.Event()
        self._has_ended = False  # no more text
        self._closed = asyncio.Event()
        self._timer = PauseTimer(speak_after_s, self._pause)

    @property
    def has_ended(self) -> bool:
        """No more text is taken."""
        return self._has_ended or self._closed.is_set()

    def _add(self, text: str, limit: int) -> None:
        """It goes on in another session where one would have more than ``limit`` characters."""
        while text:
            before = "" if self._segments.open is None else self._segments.open.text
            room = room_in(before, text, limit)
            if room:
                self._push(text[:room])
            text = text[room:]
            if text:
                self._end_segment()
        self._time_pause()

    def _push(self, text: str) -> None:
        segment = self._segments.add(text)
        if segment.session is None:
            self._changed.set()
        else:
            with contextlib.suppress(BistreamError, ConnectionError):  # the iteration raises it
                segment.session.put_text(text)

    def _end_segment(self, is_flush: bool = False) -> None:
        """Have the open segment spoken to its end. is_flush: see ``Segments.end``."""
        self._timer.stop()
        segment = self._segments.end(is_flush)
        if segment is not None and segment.session is not None:
            with contextlib.suppress(BistreamError, ConnectionError):
                segment.session.put_text("", is_end=True)
        self._changed.set()

    def _time_pause(self) -> None:
        """A pause counts from the last piece, where the text that is open has something to speak."""
        segment = self._segments.open
        if segment is not None and segment.is_speakable:
            self._timer.restart()
        else:
            self._timer.stop()

    def _pause(self) -> None:
        if self._segments.open is not None and not self.has_ended:
            self._end_segment()

    async def _next_segment(self) -> Segment | None:
        """The oldest one, once it can be spoken or has ended; None: all is spoken. Raises ``CancelledError`` once it is closed."""
        while True:
            if self._closed.is_set():
                raise CancelledError("The utterance was cancelled.")
            if (segment := self._segments.next()) is not None or (self._has_ended and self._segments.are_over):
                return segment
            self._changed.clear()
            await self._changed.wait()

    def _close_text(self) -> None:
        self._timer.stop()
        self._closed.set()
        self._changed.set()

    async def _close_sessions(self) -> None:
        for session in [segment.session for segment in self._segments if segment.session is not None]:
            await session.close()


class PauseTimer:
    """When nothing has come for a while: one timer for a text in many pieces. ``restart`` with each, ``stop`` where no pause counts."""

    def __init__(self, after_s: float, on_pause: Callable[[], None]) -> None:
        """after_s: 0: never."""
        self._after_s = after_s
        self._on_pause = on_pause
        self._handle: asyncio.TimerHandle | None = None
        self._rings_at = 0.0

    def restart(self) -> None:
        """The timer runs on and looks at the time when it rings: a new one for each piece would cost more than the piece."""
        if self._after_s <= 0:
            return
        loop = asyncio.get_running_loop()
        self._rings_at = loop.time() + self._after_s
        if self._handle is None:
            self._handle = loop.call_at(self._rings_at, self._ring)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _ring(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() < self._rings_at:
            self._handle = loop.call_at(self._rings_at, self._ring)
        else:
            self._handle = None
            self._on_pause()
