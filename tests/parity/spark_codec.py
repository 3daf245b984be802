"""Spark-TTS's codec with the weights of its golden data (``golden_spark``), read from a model directory as it would be released."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from bistream.bicodec.network import BiCodec
from bistream.bicodec.shapes import FILE_NAME
from bistream.bicodec.voice import VoiceReader
from bistream.bicodec.wav2vec2 import Wav2Vec2
from bistream.bicodec.wav2vec2_weights import FILE_NAME as WAV2VEC2_FILE_NAME
from bistream.bicodec.wav2vec2_weights import load_wav2vec2
from bistream.bicodec.weights import load_codec
from tests.parity.golden_spark import read_json, tensors

CPU = torch.device("cpu")
CONFIG_FILES = ("config.yaml", "BiCodec/config.yaml", "wav2vec2-large-xlsr-53/config.json")
WAVE_TOLERANCE = 1e-4


def write_model_dir(directory: Path) -> None:
    """Of the codec and wav2vec2, without the language model."""
    configs = read_json("config.json")
    for name in CONFIG_FILES:
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(json.dumps(configs[name]), encoding="utf-8")
    save_file(tensors("bicodec_weights"), directory / FILE_NAME)
    torch.save(tensors("wav2vec2_weights"), directory / WAV2VEC2_FILE_NAME)


@cache
def networks() -> tuple[BiCodec, Wav2Vec2]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write_model_dir(directory)
        return load_codec(directory, CPU), load_wav2vec2(directory, CPU)


@cache
def codec() -> BiCodec:
    return networks()[0]


@cache
def reader() -> VoiceReader:
    return VoiceReader(*networks(), CPU)


def assert_close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)
