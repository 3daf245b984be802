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


@dataclass(frozen=True)
class Judge:
    python: Path
    root: Path

    def hear(
        self, folder: Path, texts: Sequence[str], waveforms: Sequence[FloatArray], rate: int = SAMPLE_RATE, aligns: bool = False
    ) -> list[Heard]:
        """Writes WAV files into the empty ``folder`` and has them judged. waveforms: float32 [N], as many as texts."""
        folder.mkdir(parents=True)
        for number, waveform in enumerate(waveforms):
            soundfile.write(folder / f"{number:03d}.wav", waveform, rate, subtype="PCM_16")
        notes = {"texts": list(texts), "teacher_s": [None] * len(texts)}
        (folder / "texts.json").write_text(json.dumps(notes), encoding="utf-8")
        command = [str(self.python), str(self.root / "benchmarks" / "_voice_judges.py"), "--quality-sentences", "0", str(folder)]
        command += ["--align"] if aligns else []
        done = subprocess.run(command, cwd=self.root, stdout=subprocess.PIPE, text=True, check=True)
        (line,) = [line for line in done.stdout.splitlines() if line.startswith("{")]
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
