"""Several recordings in one call of a network: every one gets what it gets alone, whatever the network can do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bistream.config import RuntimeConfig
from bistream.errors import EngineError
from bistream.families.cosyvoice2 import COSYVOICE2
from bistream.types import FloatArray
from bistream.voice.batching import MOST, Batching, groups
from bistream.voice.features import log_mel_16k
from bistream.voice.speaker_encoder import SpeakerEncoder
from bistream.voice.speech_tokenizer import FRAMES_PER_TOKEN, SpeechTokenizer, choose_batching
from tests.unit.voice.voices import noise

SPEECH_TOKENIZER_FILE = COSYVOICE2.speech_tokenizer_file

LENGTHS = st.lists(st.integers(0, 12), max_size=30)


@given(LENGTHS, st.sampled_from(Batching), st.integers(1, 5))
def test_every_recording_is_in_one_group(lengths: list[int], batching: Batching, most: int) -> None:
    found = groups(lengths, batching, most)
    assert sorted(position for group in found for position in group) == list(range(len(lengths)))
    assert all(1 <= len(group) <= (1 if batching is Batching.ALONE else most) for group in found)
    if batching is Batching.EQUAL:
        assert all(len({lengths[position] for position in group}) == 1 for group in found)
        counts = Counter(lengths)
        assert len(found) == sum(-(-count // most) for count in counts.values()), "no call more than needed"
    if batching is Batching.PADDED:
        assert len(found) == -(-len(lengths) // most)


class CountingNetwork:
    """A network whose code of a token is the sum over its frames. spill: it also counts the padding; fails: it refuses batches."""

    takes_batches = True

    def __init__(self, spill: float = 0.0, fails: bool = False) -> None:
        self.spill, self.fails = spill, fails
        self.sizes: list[int] = []

    def log_mel(self, waveform: FloatArray) -> FloatArray:
        return log_mel_16k(waveform)

    def codes(self, recordings: Sequence[FloatArray]) -> Sequence[NDArray[Any]]:
        self.sizes.append(len(recordings))
        if self.fails and len(recordings) > 1:
            raise EngineError("one at a time")
        lengths = np.array([mel.shape[1] for mel in recordings])
        mels = np.zeros((len(recordings), 128, lengths.max()), np.float32)
        for row, mel in zip(mels, recordings, strict=True):
            row[:, : mel.shape[1]] = mel
        padded = np.pad(mels, ((0, 0), (0, 0), (0, -mels.shape[2] % FRAMES_PER_TOKEN)))
        padding = mels.shape[2] - lengths[:, None]
        tokens: NDArray[Any] = np.abs(padded).sum(axis=1).reshape(len(mels), -1, FRAMES_PER_TOKEN).sum(axis=2) + self.spill * padding
        return list(tokens.astype(np.int32))


@pytest.mark.parametrize(
    ("network", "batching"),
    [(CountingNetwork(), Batching.PADDED), (CountingNetwork(spill=1.0), Batching.EQUAL), (CountingNetwork(fails=True), Batching.ALONE)],
)
def test_the_widest_batch_that_gives_equal_codes(network: CountingNetwork, batching: Batching) -> None:
    assert choose_batching(network) is batching
    tokenizer = SpeechTokenizer(network)
    waveforms = [noise(count) for count in (9000, 8000, 9000, 8500, 9000)]
    network.sizes.clear()
    found = tokenizer.tokens_of(waveforms)
    assert sorted(network.sizes) == {Batching.PADDED: [5], Batching.EQUAL: [1, 1, 3], Batching.ALONE: [1] * 5}[batching]
    for waveform, tokens in zip(waveforms, found, strict=True):
        np.testing.assert_array_equal(tokens, tokenizer.tokens(waveform))


@pytest.fixture(scope="module")
def tokenizers(tiny_model_dir: Path) -> dict[str, SpeechTokenizer]:
    names = ("onnx", "torch")
    config = {name: RuntimeConfig(model_dir=str(tiny_model_dir), device="cpu", num_threads=1, speech_tokenizer=name) for name in names}
    return {name: SpeechTokenizer.from_config(config[name]) for name in names}


@settings(max_examples=5)
@given(samples=st.lists(st.integers(400, 24_000), min_size=1, max_size=MOST + 1), name=st.sampled_from(["onnx", "torch"]))
def test_codes_are_those_of_each_alone(tokenizers: dict[str, SpeechTokenizer], samples: list[int], name: str) -> None:
    tokenizer = tokenizers[name]
    assert tokenizer.batching is Batching.PADDED
    for count, tokens in zip(samples, tokenizer.tokens_of([noise(count) for count in samples]), strict=True):
        np.testing.assert_array_equal(tokens, tokenizer.tokens(noise(count)))


def test_embeddings_are_those_of_each_alone(tiny_model_dir: Path) -> None:
    encoder = SpeakerEncoder.from_model_dir(tiny_model_dir, "cpu", 1)
    assert encoder.batching is Batching.EQUAL
    waveforms = [noise(16_000), noise(9000), 0.5 * noise(16_000), noise(16_010)]
    for waveform, embedding in zip(waveforms, encoder.embeddings_of(waveforms), strict=True):
        alone = encoder.embedding(waveform)
        np.testing.assert_allclose(embedding, alone, rtol=0, atol=1e-5 * float(np.abs(alone).max()))
