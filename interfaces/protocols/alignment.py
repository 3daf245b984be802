"""When each character is spoken, as ElevenLabs' clients want it: estimates, from where the voice is at the end of each chunk. Pure.

Characters are spread evenly over the audio since the last ones.
"""

from __future__ import annotations

from collections import deque
from typing import Any


class Alignment:
    """One utterance. The times of one message begin at its own start, or with ``is_cumulative`` at that of the utterance."""

    def __init__(self, is_cumulative: bool) -> None:
        self._is_cumulative = is_cumulative
        self._text: list[str] = []
        self._breaks: deque[tuple[int, int]] = deque()  # characters before each, and its silence
        self._told = 0  # characters
        self._aligned_ms = 0  # of the audio up to the last character that was given out
        self._audio_ms = 0.0

    def append(self, text: str) -> None:
        self._text.extend(text)

    def pause(self, silence_ms: int) -> None:
        """Behind the text so far."""
        self._breaks.append((len(self._text), silence_ms))

    def hold(self, duration_ms: float) -> None:
        """Audio for which the encoder has given no bytes yet."""
        self._audio_ms += duration_ms

    def next(self, duration_ms: float, position: int) -> dict[str, Any] | None:
        """For the audio that follows; None where the voice has reached no more characters. position: the one at its end.

        Audio without characters is added to the next ones: a client that sums up the messages' durations stays with the audio.
        """
        self._audio_ms += duration_ms
        chars = self._text[self._told : position]
        if not chars:
            return None
        end = max(self._aligned_ms, round(self._audio_ms))
        silence_ms = min(self._silence_ms(position), end - self._aligned_ms)
        self._told += len(chars)
        start, shift = self._aligned_ms + silence_ms, silence_ms + (self._aligned_ms if self._is_cumulative else 0)
        self._aligned_ms = end
        bounds = [(end - start) * number // len(chars) for number in range(len(chars) + 1)]
        return {
            "chars": chars,
            "charStartTimesMs": [shift + bound for bound in bounds[:-1]],
            "charDurationsMs": [right - left for left, right in zip(bounds, bounds[1:], strict=False)],
        }

    def _silence_ms(self, position: int) -> int:
        """Of breaks before the next characters. Those among them have no effect: a position behind one comes after that of its text."""
        silence_ms = 0
        while self._breaks and self._breaks[0][0] < position:
            place, break_ms = self._breaks.popleft()
            silence_ms += break_ms if place <= self._told else 0
        return silence_ms
