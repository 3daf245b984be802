"""Small data sets for the tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import soundfile

from tests.sounds import speech_like


def write_recording(path: Path, seconds: float = 1.0, pitch_hz: float = 150.0) -> Path:
    """A voice of its own for each pitch, 16 kHz."""
    soundfile.write(path, speech_like(int(16000 * seconds), seed=int(pitch_hz)), 16000)
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
