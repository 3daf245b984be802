"""The renderer of a codec: hops however they are cut are one call of the network, and what does not fit is refused in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.bicodec.decoding import decode
from bistream.bicodec.weights import load_codec
from bistream.config import RuntimeConfig
from bistream.errors import InvalidInputError
from bistream.token2wav.codec_renderer import CodecRenderer
from bistream.token2wav.factory import load_renderer
from bistream.token2wav.renderer import RendererHop
from bistream.types import FloatArray, VoicePrompt

NUM_TOKENS = 150
TOKENS = np.random.default_rng(0).integers(0, 512, NUM_TOKENS).astype(np.int32)
SPEAKER = np.arange(32, dtype=np.float32)


@pytest.fixture(scope="module")
def renderer(tiny_spark_dir: Path) -> CodecRenderer:
    found = load_renderer(RuntimeConfig(model_dir=str(tiny_spark_dir), device="cpu"))
    assert isinstance(found, CodecRenderer)
    return found


@pytest.fixture(scope="module")
def whole(tiny_spark_dir: Path) -> FloatArray:
    (found,) = decode(load_codec(tiny_spark_dir, torch.device("cpu")), [TOKENS], [SPEAKER.astype(np.int32)])
    return found


def voice(speaker: FloatArray = SPEAKER, tokens: Sequence[int] = ()) -> VoicePrompt:
    return VoicePrompt("", np.array(tokens, np.int32), np.zeros((0, 0), np.float32), speaker)


@settings(max_examples=5)
@given(cuts=st.sets(st.integers(0, NUM_TOKENS), max_size=6))
def test_hops_are_one_call(renderer: CodecRenderer, whole: FloatArray, cuts: set[int]) -> None:
    rendering = renderer.open(voice(), seed=0)
    places = [0, *sorted(cuts), NUM_TOKENS]
    heard = []
    for start, end in pairwise(places):
        (waveform,) = renderer.begin(
            [RendererHop(rendering, TOKENS[start:end].tolist(), end == NUM_TOKENS and start == places[-2])]
        ).finish()
        assert isinstance(waveform, np.ndarray)
        heard.append(waveform)
    rendering.close()
    np.testing.assert_allclose(np.concatenate(heard), np.clip(whole, -0.99, 0.99), rtol=0, atol=5e-5)


def test_a_hop_says_how_much_it_withholds(renderer: CodecRenderer) -> None:
    size, rendering = renderer.sizes.samples_per_frame, renderer.open(voice(), seed=0)
    samples = []
    for start, end, lookahead in ((0, 25, 10), (25, 60, 0), (60, 61, None), (61, 61, 0)):
        (waveform,) = renderer.begin(
            [RendererHop(rendering, TOKENS[start:end].tolist(), finalize=False, lookahead_tokens=lookahead)]
        ).finish()
        assert isinstance(waveform, np.ndarray)
        samples.append(len(waveform))
    assert samples == [15 * size, 45 * size, 0, size]
    rendering.close()


def test_an_utterance_is_one_call(renderer: CodecRenderer, whole: FloatArray) -> None:
    utterance = renderer.begin_utterance(TOKENS.tolist(), voice(), seed=0, speed=1.0)
    steps = 0
    while (outcome := next(utterance)) is None:
        steps += 1
    assert isinstance(outcome, np.ndarray) and steps > 1, "hops can run between the pieces"
    np.testing.assert_allclose(outcome, np.clip(whole, -0.99, 0.99), rtol=0, atol=5e-5)


@pytest.mark.parametrize(
    ("prompt", "sentence"),
    [
        (voice(SPEAKER[:31]), "must be the 32 numbers of a voice"),
        (voice(SPEAKER + 0.5), "must be the 32 numbers of a voice"),
        (voice(SPEAKER + 256.0), "must be 0 to 255"),
        (voice(tokens=[512]), "only 0 to 511 exist"),
    ],
)
def test_a_voice_of_something_else(renderer: CodecRenderer, prompt: VoicePrompt, sentence: str) -> None:
    with pytest.raises(InvalidInputError, match=sentence):
        renderer.check_prompt(prompt)
