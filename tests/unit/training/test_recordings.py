"""The recordings that are shipped beside the voice."""

from __future__ import annotations

import numpy as np
import pytest

from training.finish import without_silence


@pytest.mark.parametrize(("speech", "tokens"), [(28_480, 45), (28_800, 45), (28_880, 46)])
def test_a_recording_without_its_silence_is_whole_speech_tokens(speech: int, tokens: int) -> None:
    """640 samples each; nothing that is heard is lost."""
    waveform = np.zeros(40_000, dtype=np.float32)
    waveform[4_000 : 4_000 + speech] = 0.1 * np.random.default_rng(0).standard_normal(speech)
    found = without_silence(waveform)
    assert len(found) == 640 * tokens
    assert np.abs(found).sum() == pytest.approx(np.abs(waveform).sum())
