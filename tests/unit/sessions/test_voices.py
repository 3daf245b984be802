"""Impossible settings of voices are only logged at the start, because a voice may be registered later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bistream.config import RuntimeConfig
from bistream.sessions.voices import Voices
from bistream.voice.build import make_voice_prompt
from bistream.voice.registry import VoiceRegistry
from tests.unit.sessions.fakes import FakeVoicePort


def log_of(caplog: pytest.LogCaptureFixture, **settings: Any) -> str:
    caplog.clear()
    caplog.set_level("INFO")
    Voices(RuntimeConfig(**settings), FakeVoicePort())
    return caplog.text


def test_a_missing_voice_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = str(tmp_path / "voices")
    assert "voices_dir" in log_of(caplog, voices_dir=directory)
    assert "default_speaker_id 'anna'" in log_of(caplog, default_speaker_id="anna")
    tokens, feat, embedding = np.zeros(2, np.int32), np.zeros((4, 80), np.float32), np.ones(192, np.float32)
    VoiceRegistry(directory).save("anna", make_voice_prompt("said", tokens, feat, embedding))
    assert log_of(caplog, voices_dir=directory, default_speaker_id="anna") == ""
    assert "default_speaker_id 'bert'" in log_of(caplog, voices_dir=directory, default_speaker_id="bert")
    assert log_of(caplog) == ""
