"""Small data sets for the tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import soundfile


def write_recording(path: Path, seconds: float = 1.0, pitch_hz: float = 150.0) -> Path:
    """A voice-like tone, 16 kHz."""
    time_s = np.arange(int(16000 * seconds)) / 16000
    soundfile.write(path, 0.1 * sum(np.sin(2 * np.pi * pitch_hz * harmonic * time_s) / harmonic for harmonic in range(1, 6)), 16000)
    return path


def records(folder: Path, texts: list[str]) -> list[dict[str, Any]]:
    """Rows a, b, c, ... with one recording in ``folder``."""
    write_recording(folder / "voice.wav")
    return [
        {"id": chr(ord("a") + index), "prompt_audio": "voice.wav", "prompt_text": "A tone.", "target_text": text}
        for index, text in enumerate(texts)
    ]


def write_jsonl(folder: Path, texts: list[str]) -> Path:
    path = folder / "set.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records(folder, texts)), encoding="utf-8")
    return path
