"""The breaks of a session in its audio: silence of exactly the length that was asked for, between what token2wav renders. Pure arithmetic.

The language model fills a break with a few speech tokens (``text2token.silence``), so that all speech before it is rendered at once. Their
audio is left out but for a fade, and zeros stand in its place; the speech behind them is faded in. Samples are counted, so the result is
the same however the audio is cut into hops. Rendered samples are those of token2wav, heard ones those that the listener gets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bistream.types import FloatArray

FADE_S = 0.005  # to and from a break
PART_S = 1.0  # of silence in one chunk


@dataclass
class _Break:
    """begin, end: of its filling, in rendered samples; end: None: not known yet. tail: samples of the filling that fade out."""

    begin: int
    tail: int
    silence: int
    end: int | None = None
    is_heard: bool = False  # its silence has gone out

    @property
    def silent_from(self) -> int:
        return self.begin + self.tail


class AudioBreaks:
    def __init__(self, sample_rate: int) -> None:
        self._sample_rate = sample_rate
        self._fade = round(FADE_S * sample_rate)
        self._breaks: list[_Break] = []
        self._next = 0  # the first of them that is not over
        self._came = 0  # rendered samples

    def begin(self, at: int, silence_ms: int) -> None:
        """A break begins at a rendered sample, which has not come yet."""
        is_after_speech = at > (self._breaks[-1].end or 0 if self._breaks else 0)
        self._breaks.append(_Break(at, self._fade if is_after_speech else 0, silence_ms * self._sample_rate // 1000))

    def end(self, at: int) -> None:
        """The filling of the last break ends before a rendered sample."""
        self._breaks[-1].end = at

    def push(self, waveform: FloatArray, is_last: bool) -> list[FloatArray]:
        """The next rendered samples -> the audio to send, with the silence that is due; no part is empty."""
        return [part for part in self._heard(waveform, is_last) if len(part)]

    def _heard(self, waveform: FloatArray, is_last: bool) -> Iterator[FloatArray]:
        while self._next < len(self._breaks):
            one = self._breaks[self._next]
            if not one.is_heard:
                head, waveform = np.split(waveform, [one.silent_from - self._came])
                yield self._faded(head)
                self._came += len(head)
                if self._came < one.silent_from and not is_last:
                    return
                yield from _silence(one.silence, round(PART_S * self._sample_rate))
                one.is_heard = True
            left_out = len(waveform) if one.end is None else min(len(waveform), one.end - self._came)
            self._came += left_out
            waveform = waveform[left_out:]
            if one.end is None or self._came < one.end:
                return
            self._next += 1
        yield self._faded(waveform)
        self._came += len(waveform)

    def _faded(self, part: FloatArray) -> FloatArray:
        """The next rendered samples, in the fade after the break before them and in the one before the break after them."""
        places = np.arange(self._came, self._came + len(part))
        if self._next and (begin := self._breaks[self._next - 1].end or 0) + self._fade > self._came:
            part = part * np.clip((places - begin) / self._fade, 0.0, 1.0).astype(np.float32)
        if self._next < len(self._breaks) and len(part) and places[-1] >= (begin := self._breaks[self._next].begin):
            part = part * np.clip(1.0 - (places - begin) / self._fade, 0.0, 1.0).astype(np.float32)
        return part

    def rendered(self, heard: int) -> int:
        """Rendered samples that are over after so many heard ones."""
        ahead = 0  # rendered samples beyond the heard ones
        for one in self._breaks:
            silent_from = one.silent_from - ahead
            if heard <= silent_from:
                break
            if heard <= silent_from + one.silence or one.end is None:
                return one.silent_from
            ahead = one.end - silent_from - one.silence
        return heard + ahead


def _silence(samples: int, most: int) -> Iterator[FloatArray]:
    for begin in range(0, samples, most):
        yield np.zeros(min(most, samples - begin), np.float32)
