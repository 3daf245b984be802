"""Held-out sentences as a teacher says them, and noise of the same level, as WAV files: ceiling and floor of the judges.

Example:  python -m training.sample --set a --voice nora --out build/voice/judged
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import soundfile

from bistream.families.cosyvoice2 import AUDIO_FORMAT
from bistream.types import FloatArray
from training import teachers
from training.heldout import NAMES, sentences
from training.voices import voice_named


def noise_like(waveform: FloatArray) -> FloatArray:
    level = float(np.sqrt(np.mean(waveform**2)))
    return (level * np.random.default_rng(0).standard_normal(len(waveform))).astype(np.float32)


SYSTEMS: dict[str, Callable[[FloatArray], FloatArray]] = {"teacher": np.copy, "noise": noise_like}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", default="a", choices=NAMES)
    parser.add_argument("--voice", default="nora")
    parser.add_argument("--count", type=int, default=1000, help="sentences at most")
    parser.add_argument("--folder", type=Path, default=Path("build/voice"))
    parser.add_argument("--out", type=Path, default=Path("build/voice/judged"))
    arguments = parser.parse_args()
    texts = list(sentences(arguments.set))[: arguments.count]
    spoken = teachers.speak(arguments.folder / "work" / "unpacked", voice_named(arguments.voice), texts)
    recordings = [utterance.waveform.astype(np.float32) / 32768.0 for utterance in spoken if utterance is not None]
    if len(recordings) < len(texts):  # the numbers of files and texts would no longer agree
        sys.exit(f"The teacher of {arguments.voice} spoke only {len(recordings)} of {len(texts)} sentences; run the stage prepare again.")
    lengths = [len(waveform) / AUDIO_FORMAT.sample_rate for waveform in recordings]
    for name, system in SYSTEMS.items():  # as benchmarks/voice_quality.py reads them
        folder = arguments.out / f"{arguments.voice}-{arguments.set}-{name}"
        folder.mkdir(parents=True, exist_ok=True)
        for number, waveform in enumerate(recordings):
            soundfile.write(folder / f"{number:03d}.wav", system(waveform), AUDIO_FORMAT.sample_rate, subtype="PCM_16")
        (folder / "texts.json").write_text(json.dumps({"texts": texts, "teacher_s": lengths}), encoding="utf-8")


if __name__ == "__main__":
    main()
