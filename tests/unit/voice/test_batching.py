"""Several recordings together: every one gets what it gets alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.config import RuntimeConfig
from bistream.voice.speaker_encoder import SpeakerEncoder
from bistream.voice.speech_tokenizer import SpeechTokenizer
from tests.unit.voice.voices import noise, on_cpu


@pytest.fixture(scope="module")
def tokenizers(tiny_model_dir: Path) -> dict[str, SpeechTokenizer]:
    names = ("onnx", "torch")
    config = {name: RuntimeConfig(model_dir=str(tiny_model_dir), device="cpu", num_threads=1, speech_tokenizer=name) for name in names}
    return {name: SpeechTokenizer.from_config(config[name]) for name in names}


@settings(max_examples=5)
@given(samples=st.lists(st.integers(400, 24_000), min_size=1, max_size=9), name=st.sampled_from(["onnx", "torch"]))
def test_codes_are_those_of_each_alone(tokenizers: dict[str, SpeechTokenizer], samples: list[int], name: str) -> None:
    tokenizer = tokenizers[name]
    for count, tokens in zip(samples, tokenizer.tokens_of([noise(count) for count in samples]), strict=True):
        np.testing.assert_array_equal(tokens, tokenizer.tokens(noise(count)))


def test_embeddings_are_those_of_each_alone(tiny_model_dir: Path) -> None:
    encoder = SpeakerEncoder.from_config(on_cpu(tiny_model_dir))
    waveforms = [noise(16_000), noise(9000), 0.5 * noise(16_000), noise(16_010)]
    for waveform, embedding in zip(waveforms, encoder.embeddings_of(waveforms), strict=True):
        alone = encoder.embedding(waveform)
        np.testing.assert_allclose(embedding, alone, rtol=0, atol=1e-5 * float(np.abs(alone).max()))
