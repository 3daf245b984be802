"""The voice that is shipped and the recordings beside it: as training makes them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bistream.checkpoints.reader import read_config
from training import sizes
from training.export import exported_config
from training.finish import without_silence
from training.heldout import sentences

ASSETS = Path(__file__).resolve().parents[3] / "assets"


@pytest.mark.parametrize(("speech", "tokens"), [(28_480, 45), (28_800, 45), (28_880, 46)])
def test_a_recording_without_its_silence_is_whole_speech_tokens(speech: int, tokens: int) -> None:
    """640 samples each; nothing that is heard is lost."""
    waveform = np.zeros(40_000, dtype=np.float32)
    waveform[4_000 : 4_000 + speech] = 0.1 * np.random.default_rng(0).standard_normal(speech)
    found = without_silence(waveform)
    assert len(found) == 640 * tokens
    assert np.abs(found).sum() == pytest.approx(np.abs(waveform).sum())


def test_the_shipped_voice_has_the_sizes_and_settings_of_training() -> None:
    """Solver steps and sampling too: the yaml is written by hand where only they change."""
    shipped, made = read_config(ASSETS / "voice"), exported_config(sizes.VOICE)
    assert (shipped.language_model, shipped.flow, shipped.vocoder) == (made.language_model, made.flow, made.vocoder)


def test_every_sentence_has_the_length_of_its_teacher() -> None:
    """``tests/voice`` compares a trained voice with it; about 16 characters are a second of this teacher, digits aside."""
    seconds = json.loads((ASSETS.parent / "tests/voice/teacher_seconds.json").read_text(encoding="utf-8"))
    for name in ("a", "b"):
        assert len(seconds[name]) == len(sentences(name))
        rates = [len(text) / spoken for text, spoken in zip(sentences(name), seconds[name], strict=True) if text[0].isalpha()]
        assert len(rates) >= 80 and 10 < min(rates) and max(rates) < 22
