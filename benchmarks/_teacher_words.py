"""When each word of an utterance is spoken: a teacher that knows its own word times says the same text, and is warped onto the utterance.

Forced alignment without a recogniser: festival tells the beginning and end of every word that it speaks; dynamic time warping over cepstra
(Sakoe and Chiba 1978) finds which of its frames each frame of the utterance is. It needs a voice that sounds like the teacher, as the
trained one does. Its error can be measured: another teacher at another tempo has true times of its own (``own_error``).
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import wave
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bistream.rates import REFERENCE_SAMPLE_RATE
from bistream.resample import resample
from bistream.types import FloatArray
from bistream.voice.features import KALDI_FRAME, KALDI_HOP, fbank_16k
from training.teachers import FESTIVAL_DATA, LIBRARIES

_CEPSTRA = 13
_DELTA = 2  # frames to each side


@dataclass(frozen=True)
class Taught:
    """waveform: float32 [N] at 16 kHz. words: (name, begin, end), in seconds."""

    waveform: FloatArray
    words: tuple[tuple[str, float, float], ...]


def taught(root: Path, voice: str, texts: Sequence[str], stretch: float = 1.0) -> list[Taught]:
    """What the teacher says, in festival's voice (a Scheme function). root: where its packages are unpacked. Raises ``RuntimeError``."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = [f"({voice})", f"(Parameter.set 'Duration_Stretch {stretch})"]
        for number, text in enumerate(texts):
            script.append(
                f'(let ((utt (SynthText "{text}")) (file (fopen "{folder}/{number}.words" "w"))) '
                f'(utt.save.wave utt "{folder}/{number}.wav" \'riff) (mapcar (lambda (w) (format file "%s %f %f\\n" (item.name w) '
                '(item.feat w "word_start") (item.feat w "word_end"))) (utt.relation.items utt \'Word)) (fclose file))'
            )
        (folder / "script.scm").write_text("\n".join(script), encoding="latin-1")
        data = root / FESTIVAL_DATA
        start = f'(begin (set! libdir "{data}") (set! datadir libdir) (load "{data}/init.scm"))'
        command = [str(root / "usr/bin/festival"), "-q", "-b", start, str(folder / "script.scm")]
        done = subprocess.run(
            command, env={**os.environ, "LD_LIBRARY_PATH": str(root / LIBRARIES)}, check=False, capture_output=True, text=True
        )
        if not (folder / f"{len(texts) - 1}.words").exists():
            raise RuntimeError(f"festival did not speak all texts: {done.stderr[-300:]}")
        return [Taught(_waveform(folder / f"{number}.wav"), _words(folder / f"{number}.words")) for number in range(len(texts))]


def _waveform(path: Path) -> FloatArray:
    with wave.open(str(path), "rb") as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), dtype=np.int16).astype(np.float32) / 32768
        return resample(samples, file.getframerate(), REFERENCE_SAMPLE_RATE)


def _words(path: Path) -> tuple[tuple[str, float, float], ...]:
    lines = [line.split() for line in path.read_text(encoding="latin-1").splitlines()]
    return tuple((name, float(begin), float(end)) for name, begin, end in lines)


def aligned_words(teacher: Taught, waveform: FloatArray) -> list[tuple[float, float]]:
    """Beginning and end of each of the teacher's words in ``waveform`` (float32 [N], 16 kHz, the same words), in seconds."""
    path = warp(_cepstra(teacher.waveform), _cepstra(waveform))
    times = (np.arange(len(teacher.waveform) // KALDI_HOP) * KALDI_HOP + KALDI_FRAME / 2) / REFERENCE_SAMPLE_RATE
    there = (path * KALDI_HOP + KALDI_FRAME / 2) / REFERENCE_SAMPLE_RATE
    found = np.interp([time for _, begin, end in teacher.words for time in (begin, end)], times[: len(there)], there)
    return [(float(begin), float(end)) for begin, end in found.reshape(-1, 2)]


def own_error(teacher: Sequence[Taught], other: Sequence[Taught]) -> NDArray[np.float64]:
    """Seconds by which the words of ``other``, another speaker's recordings of the same texts, are found off their true times."""
    return np.array(
        [
            abs(found - true)
            for one, spoken in zip(teacher, other, strict=True)
            for times, (_, *trues) in zip(aligned_words(one, spoken.waveform), spoken.words, strict=True)
            for found, true in zip(times, trues, strict=True)
        ]
    )


def _cepstra(waveform: FloatArray) -> NDArray[np.float64]:
    """Of the filter bank, with deltas, each of variance 1 over the utterance: [T, 26]."""
    bank = fbank_16k(waveform).astype(np.float64)
    bank = np.maximum(bank, bank.max() - 10.0)  # silence of a recording and of a synthesis
    bands = np.arange(bank.shape[1]) + 0.5
    cosines = np.cos(np.pi / bank.shape[1] * np.outer(np.arange(_CEPSTRA), bands))
    cepstra = bank @ cosines.T
    padded = np.pad(cepstra, ((_DELTA, _DELTA), (0, 0)), mode="edge")
    deltas = sum(
        step * (padded[_DELTA + step :][: len(cepstra)] - padded[_DELTA - step :][: len(cepstra)]) for step in range(1, _DELTA + 1)
    )
    both = np.concatenate([cepstra, deltas], axis=1)
    normed: NDArray[np.float64] = (both - both.mean(0)) / (both.std(0) + 1e-9)
    return normed


def warp(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """The cheapest monotone path: for each frame of ``first`` [T, D] the mean frame of ``second`` [S, D] that it is: float [T]."""
    distance = np.sqrt(np.maximum(0.0, (first**2).sum(1)[:, None] + (second**2).sum(1) - 2 * first @ second.T))
    total = np.full((len(first) + 1, len(second) + 1), np.inf)
    total[0, 0] = 0.0
    steps = np.zeros(distance.shape, np.int8)
    for diagonal in range(len(first) + len(second) - 1):  # of cells that do not depend on each other
        rows = np.arange(max(0, diagonal - len(second) + 1), min(len(first), diagonal + 1))
        columns = diagonal - rows
        options = np.stack([total[rows, columns], total[rows, columns + 1], total[rows + 1, columns]])
        steps[rows, columns] = options.argmin(0)
        total[rows + 1, columns + 1] = options.min(0) + distance[rows, columns]
    sums, counts = np.zeros(len(first)), np.zeros(len(first))
    row, column = len(first) - 1, len(second) - 1
    while row >= 0 and column >= 0:
        sums[row] += column
        counts[row] += 1
        step = steps[row, column]
        row, column = row - int(step != 2), column - int(step != 1)
    means: NDArray[np.float64] = np.interp(np.arange(len(first)), np.flatnonzero(counts), (sums / np.maximum(counts, 1))[counts > 0])
    return means
