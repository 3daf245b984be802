"""Held-out sentences as a teacher says them, and noise of the same level: ceiling and floor, for ``bistream evaluate``.

Example:  python -m training.sample --set a --voice nora --out build/voice/judged

Writes OUT/SET.jsonl, the sentences, OUT/teacher/SET/ID.wav and OUT/noise/SET/ID.wav.
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
    if len(recordings) < len(texts):  # or the numbers of files and texts would differ
        sys.exit(f"The teacher of {arguments.voice} spoke only {len(recordings)} of {len(texts)} sentences; run the stage prepare again.")
    ids = [f"{number:03d}" for number in range(len(texts))]
    for name, system in SYSTEMS.items():
        folder = arguments.out / name / arguments.set
        folder.mkdir(parents=True, exist_ok=True)
        for sentence_id, waveform in zip(ids, recordings, strict=True):
            soundfile.write(folder / f"{sentence_id}.wav", system(waveform), AUDIO_FORMAT.sample_rate, subtype="PCM_16")
    rows = [json.dumps({"id": sentence_id, "text": text}) for sentence_id, text in zip(ids, texts, strict=True)]
    (arguments.out / f"{arguments.set}.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
