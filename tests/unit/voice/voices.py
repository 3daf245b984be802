"""Voices and recordings for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bistream.config import RuntimeConfig
from bistream.types import FloatArray, VoicePrompt
from bistream.voice.build import make_voice_prompt


def on_cpu(model_dir: Path) -> RuntimeConfig:
    return RuntimeConfig(model_dir=str(model_dir), device="cpu", num_threads=1)


def noise(samples: int) -> FloatArray:
    """Amplitude 0.1; the number of samples is also the seed."""
    return 0.1 * np.random.default_rng(samples).standard_normal(samples).astype(np.float32)


def random_voice(seed: int = 0, tokens: int = 7, text: str = "What is said.") -> VoicePrompt:
    generator = np.random.default_rng(seed)
    return make_voice_prompt(
        text,
        generator.integers(0, 6561, tokens).astype(np.int32),
        generator.standard_normal((2 * tokens, 80)).astype(np.float32),
        generator.standard_normal(192).astype(np.float32),
    )


def assert_same_voice(first: VoicePrompt, second: VoicePrompt) -> None:
    assert first.prompt_text == second.prompt_text
    np.testing.assert_array_equal(first.speech_tokens, second.speech_tokens)
    np.testing.assert_array_equal(first.speech_feat, second.speech_feat)
    np.testing.assert_array_equal(first.speaker_embedding, second.speaker_embedding)
    np.testing.assert_array_equal(first.speaker_labels, second.speaker_labels)
