"""Tiny random codecs for the tests of this folder."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from bistream.bicodec.config import CodecConfig, FrameNetSizes, GeneratorSizes
from bistream.bicodec.network import BiCodec
from bistream.bicodec.weights import build_codec
from bistream.types import IntArray
from scripts._codec_files import TINY, codec_state
from scripts._random_weights import Drawer

# Frames are twice and three times as many as tokens inside the prenet, and rates with odd numbers follow: no released codec has that.
RESAMPLED = replace(
    TINY.codec,
    prenet=replace(TINY.codec.prenet, ratios=(2, 3)),
    generator=GeneratorSizes(TINY.codec.generator.input_size, 16, (3, 2), (9, 4)),
)
_RELEASED = CodecConfig()


def _thin(sizes: FrameNetSizes, depth: int) -> FrameNetSizes:
    return replace(sizes, layers=depth)


# As deep as the released codec, so that it looks as far, but thin.
DEEP = replace(
    TINY.codec, prenet=_thin(TINY.codec.prenet, _RELEASED.prenet.layers), encoder=_thin(TINY.codec.encoder, _RELEASED.encoder.layers)
)
CONFIGS = {"tiny": TINY.codec, "resampled": RESAMPLED, "deep": DEEP}


@cache
def codec(name: str = "tiny") -> BiCodec:
    config = CONFIGS[name]
    return build_codec(config, codec_state(Drawer(seed=0), config))


def tokens(count: int, seed: int = 0) -> IntArray:
    array: IntArray = np.random.default_rng(seed).integers(0, TINY.codec.quantizer.codes, count).astype(np.int32)
    return array


def voice(seed: int = 0) -> IntArray:
    speaker = TINY.codec.speaker
    array: IntArray = np.random.default_rng(seed).integers(0, speaker.codes, speaker.tokens).astype(np.int32)
    return array
