"""Models the listener: how much audio is still unplayed, and how much of the text has certainly been spoken. Pure arithmetic.

The orchestrator reports what it sends; hop sizes and the back-pressure on unplayed audio depend on the result.
"""

from __future__ import annotations

from collections import deque

from bistream.rates import SAMPLE_RATE, SAMPLES_PER_TOKEN


class Playback:
    """A listener that starts playing when the first chunk is sent and plays at 1x, pausing on an underrun."""

    def __init__(self) -> None:
        self._samples_sent = 0
        self._ends_at: float | None = None  # when everything sent so far has been played

    def sent(self, samples: int, now: float) -> None:
        starts_at = now if self._ends_at is None else max(now, self._ends_at)
        self._ends_at = starts_at + samples / SAMPLE_RATE
        self._samples_sent += samples

    @property
    def samples_sent(self) -> int:
        return self._samples_sent

    def buffer_s(self, now: float) -> float:
        """Seconds of unplayed audio; 0.0 before the first chunk and during a gap."""
        return 0.0 if self._ends_at is None else max(0.0, self._ends_at - now)


class SpokenText:
    """Maps audio to text: speech token i covers the samples [960 i, 960 (i + 1)) of a session, so n samples hold n // 960 whole tokens.

    That is true whatever the stages hold back (3 lookahead tokens, 3840 samples of vocoder overlap), because output samples are counted.
    """

    def __init__(self) -> None:
        self._tokens = 0
        self._marks: deque[tuple[int, int]] = deque()  # (speech tokens so far, characters spoken with them), both ascending
        self._characters = 0

    def tokens_came(self, count: int, text_consumed: int) -> None:
        """Record a message: ``text_consumed`` characters are spoken once all tokens up to this one are."""
        self._tokens += count
        self._marks.append((self._tokens, text_consumed))

    def characters(self, samples_sent: int, is_last: bool) -> int:
        """Characters certainly spoken in ``samples_sent`` samples. Never decreases. ``is_last``: no audio follows."""
        spoken_tokens = self._tokens if is_last else samples_sent // SAMPLES_PER_TOKEN
        while self._marks and self._marks[0][0] <= spoken_tokens:
            self._characters = max(self._characters, self._marks.popleft()[1])
        return self._characters
