"""The judges of ``bistream evaluate`` for a few sounds: what is understood, where words end, whose voice it is."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

from bistream.evaluation.judge_process import JudgeChoice, JudgeProcess
from bistream.evaluation.texts import compare
from bistream.types import FloatArray
from tests.formats import SAMPLE_RATE


@dataclass(frozen=True)
class Heard:
    """text: what was understood. errors: of its words, at most ``words``.

    word_ends: seconds at which each word of the given text (between blanks) ends, where the judge was asked to align it.
    """

    text: str
    errors: int
    words: int
    word_ends: tuple[float, ...] = ()


class Judge:
    """A context manager; a network is loaded when it is first asked."""

    def __init__(self, python: Path) -> None:
        self._python = python
        self._stack = ExitStack()

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    @cached_property
    def _whisper(self) -> JudgeProcess:
        return self._started(JudgeChoice("whisper", "tiny.en"))

    @cached_property
    def _speaker(self) -> JudgeProcess:
        return self._started(JudgeChoice("speaker"))

    def _started(self, choice: JudgeChoice) -> JudgeProcess:
        process = self._stack.enter_context(JudgeProcess(choice, self._python))
        assert not process.unavailable, process.unavailable
        return process

    def hear(self, folder: Path, texts: Sequence[str], waveforms: Sequence[FloatArray], aligns: bool = False) -> list[Heard]:
        """Writes WAV files into the empty ``folder``. waveforms: float32 [N], as many as texts."""
        found = []
        for text, path in zip(texts, _written(folder, waveforms, SAMPLE_RATE), strict=True):
            row: dict[str, Any] = self._whisper.judge(path, text, "en", aligns=aligns)
            compared = compare(text, row["heard"])
            found.append(Heard(row["heard"], compared.errors, compared.units, tuple(end for _, end in row.get("word_times", ()))))
        return found

    def vectors(self, folder: Path, waveforms: Sequence[FloatArray], rate: int = SAMPLE_RATE) -> NDArray[np.float64]:
        """[sounds, size], of the voice."""
        return np.array([self._speaker.judge(path, "", "en")["vector"] for path in _written(folder, waveforms, rate)])


def _written(folder: Path, waveforms: Sequence[FloatArray], rate: int) -> list[Path]:
    folder.mkdir(parents=True)
    paths = [folder / f"{number:03d}.wav" for number in range(len(waveforms))]
    for path, waveform in zip(paths, waveforms, strict=True):
        soundfile.write(path, waveform, rate, subtype="PCM_16")
    return paths
