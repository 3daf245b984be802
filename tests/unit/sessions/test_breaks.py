"""Breaks are exactly as long as asked for, whatever the cuts of the audio, and all speech beside them is heard."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bistream.sessions.breaks import FADE_S, AudioBreaks
from bistream.types import FloatArray

SAMPLE_RATE = 1000
FADE = round(FADE_S * SAMPLE_RATE)


@dataclass
class Speech:
    """Speech, filling and silence in turn: samples of speech, of the filling behind them, milliseconds of the break."""

    parts: list[tuple[int, int, int]]

    @property
    def waveform(self) -> FloatArray:
        return np.concatenate([np.repeat(np.array([1.0, -1.0], np.float32), [speech, filling]) for speech, filling, _ in self.parts])

    def heard(self, cuts: list[int]) -> tuple[AudioBreaks, FloatArray]:
        """The breaks are known as their speech is sent, which is before it is rendered."""
        breaks, at = AudioBreaks(SAMPLE_RATE), 0
        for speech, filling, silence_ms in self.parts:
            if filling:
                breaks.begin(at + speech, silence_ms)
                breaks.end(at + speech + filling)
            at += speech + filling
        ends = [*sorted(cut % (at + 1) for cut in cuts), at]
        parts = []
        for start, end in zip([0, *ends], ends, strict=False):
            parts += breaks.push(self.waveform[start:end], is_last=False)
        return breaks, np.concatenate([*parts, *breaks.push(np.zeros(0, np.float32), is_last=True)] or [np.zeros(0, np.float32)])


PARTS = st.lists(st.tuples(st.integers(0, 60), st.integers(2 * FADE, 30), st.integers(1, 2500)), max_size=5)
SPEECH = st.builds(lambda parts, last: Speech([*parts, (last, 0, 0)]), PARTS, st.integers(0, 60))
CUTS = st.lists(st.integers(0, 1000), max_size=12)


@given(speech=SPEECH, cuts=CUTS)
def test_any_cut_gives_the_same_samples(speech: Speech, cuts: list[int]) -> None:
    assert np.array_equal(speech.heard(cuts)[1], speech.heard([])[1])


@given(speech=SPEECH, cuts=CUTS)
def test_silence_is_exact_and_speech_is_complete(speech: Speech, cuts: list[int]) -> None:
    heard, at = speech.heard(cuts)[1], 0
    for number, (samples, filling, silence_ms) in enumerate(speech.parts):
        said = heard[at : at + samples]
        assert (said[FADE if number else 0 :] == 1.0).all() and (said >= 0.0).all()
        at += samples
        if filling:
            tail = FADE if samples else 0
            assert (heard[at : at + tail] <= 0.0).all()  # of the filling
            assert not heard[at + tail : at + tail + silence_ms].any()
            at += tail + silence_ms
    assert at == len(heard)


@given(speech=SPEECH)
def test_what_was_heard_tells_what_was_rendered(speech: Speech) -> None:
    breaks, heard = speech.heard([])
    rendered = [breaks.rendered(samples) for samples in range(len(heard) + 1)]
    assert rendered == sorted(rendered)
    at = source = 0
    for number, (samples, filling, silence_ms) in enumerate(speech.parts):
        if samples:
            assert rendered[at + samples] == source + samples
        tail = FADE if filling and samples else 0
        if filling and (samples or not number):
            assert rendered[at + samples + tail] == rendered[at + samples + tail + silence_ms] == source + samples + tail
        at, source = at + samples + tail + (silence_ms if filling else 0), source + samples + filling


@given(samples=st.integers(0, 50))
def test_speech_without_breaks_is_untouched(samples: int) -> None:
    waveform = np.ones(samples, np.float32)
    parts = AudioBreaks(SAMPLE_RATE).push(waveform, is_last=True)
    assert len(parts) == (samples > 0) and all(part is waveform for part in parts)


def test_the_silence_goes_out_before_the_end_of_its_filling_is_known() -> None:
    breaks = AudioBreaks(SAMPLE_RATE)
    breaks.begin(10, 20)
    parts = breaks.push(np.ones(30, np.float32), is_last=False)
    assert sum(map(len, parts)) == 10 + FADE + 20
    breaks.end(40)
    assert breaks.push(np.ones(10, np.float32), is_last=False) == []
    assert sum(map(len, breaks.push(np.ones(7, np.float32), is_last=False))) == 7
