"""Third-party judges of sound, as a process of their own environment (``benchmarks/_voice_judges.py``)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

from bistream.types import FloatArray
from tests.formats import SAMPLE_RATE


@dataclass(frozen=True)
class Heard:
    """text: what was understood. errors: of its words, at most ``words``. vector: of the speaker, None for a sound that is too short.

    word_ends: seconds at which each word of the given text (between blanks) ends, where the judge was asked to align it.
    """

    text: str
    errors: int
    words: int
    vector: NDArray[np.float64] | None
    word_ends: tuple[float, ...] = ()


class Judge:
    """A context manager: one process, whose models are loaded once."""

    def __init__(self, python: Path, root: Path) -> None:
        self._command = [str(python), str(root / "benchmarks" / "_voice_judges.py"), "--quality-sentences", "0"]
        self._root = root

    def __enter__(self) -> Judge:
        self._process = subprocess.Popen(self._command, cwd=self._root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.communicate()

    def hear(
        self, folder: Path, texts: Sequence[str], waveforms: Sequence[FloatArray], rate: int = SAMPLE_RATE, aligns: bool = False
    ) -> list[Heard]:
        """Writes WAV files into the empty ``folder`` and has them judged. waveforms: float32 [N], as many as texts."""
        folder.mkdir(parents=True)
        for number, waveform in enumerate(waveforms):
            soundfile.write(folder / f"{number:03d}.wav", waveform, rate, subtype="PCM_16")
        notes = {"texts": list(texts), "teacher_s": [None] * len(texts), "aligns": aligns}
        (folder / "texts.json").write_text(json.dumps(notes), encoding="utf-8")
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{folder}\n")
        self._process.stdin.flush()
        line = next((line for line in self._process.stdout if line.startswith("{")), "")
        assert line, "the judges have ended; what they said is on stderr"
        return [
            Heard(
                row["heard"],
                row["errors"],
                row["words"],
                np.array(row["voice"]) if "voice" in row else None,
                tuple(end for _, end in row.get("word_times", ())),
            )
            for row in json.loads(line)["sentences"]
        ]
