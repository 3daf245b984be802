"""Spark-TTS's tokens to audio against the reference's: whole, in its own chunks, and in a stream.

Tolerances: tests/golden_spark/README.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from bistream.bicodec.decoding import decode
from bistream.bicodec.signal import WholeSignals
from bistream.bicodec.stream import SpeechDecoder, TokenPush
from bistream.types import FloatArray, IntArray
from tests.parity.golden_spark import read_json, tensors
from tests.parity.spark_codec import WAVE_TOLERANCE, assert_close, codec

DATA, STREAM, PIPELINE = tensors("detokenize"), tensors("stream"), tensors("pipeline")
CASES = sorted(key.removesuffix(".semantic") for key in DATA if key.endswith(".semantic"))
STREAMED = [case for case in read_json("stream.json")["cases"] if case["audio_stored"]]
SPOKEN = [case for case in read_json("pipeline.json")["cases"] if case["samples"]]


def tokens(tensor: torch.Tensor) -> IntArray:
    array: IntArray = tensor.flatten().to(torch.int32).numpy()
    return array


def assert_same_audio(found: FloatArray, expected: torch.Tensor) -> None:
    assert_close(torch.from_numpy(found), expected.flatten(), WAVE_TOLERANCE)


@pytest.mark.parametrize("name", CASES)
def test_whole_sequences(name: str) -> None:
    network, semantic = codec(), DATA[f"{name}.semantic"]
    voice = network.voice_vector(DATA[f"{name}.global"])
    assert_close(voice, DATA[f"{name}.d_vector"], 1e-5)
    vectors = network.quantizer.vectors(semantic)
    assert_close(vectors, DATA[f"{name}.z_q"], 1e-5)
    with torch.inference_mode():
        assert_close(network.prenet(vectors, WholeSignals(), voice), DATA[f"{name}.prenet_out"], 1e-5)
    assert_close(network.audio(semantic, voice, WholeSignals())[:, None], DATA[f"{name}.wave"], WAVE_TOLERANCE)


def test_sequences_of_different_lengths_in_one_call() -> None:
    semantic, voices, waves = ([row for name in CASES for row in DATA[f"{name}.{part}"]] for part in ("semantic", "global", "wave"))
    assert len({len(row) for row in semantic}) > 2
    audio = decode(codec(), list(map(tokens, semantic)), list(map(tokens, voices)))
    for found, wave in zip(audio, waves, strict=True):
        assert_same_audio(found, wave)


def test_tokens_behind_the_end_are_heard_without_a_mask() -> None:
    """What a batch must not do: 30 tokens of value 0."""
    padded = np.pad(tokens(DATA["one.semantic"]), (0, 30))
    assert_same_audio(decode(codec(), [padded], [tokens(DATA["one.global"])])[0], DATA["padded.wave"])


def stream_tokens(case: dict[str, Any]) -> tuple[IntArray, IntArray]:
    return tokens(STREAM["semantic"])[: case["semantic_tokens"]], tokens(STREAM["global"])


def stored(case: dict[str, Any], part: str) -> torch.Tensor:
    return STREAM[f"{case['parameters']}_{case['semantic_tokens']}.{part}"]


@pytest.mark.parametrize("case", STREAMED, ids=lambda case: f"{case['parameters']}-{case['semantic_tokens']}")
def test_chunks_as_the_references_runtime_makes_them(case: dict[str, Any]) -> None:
    """Each chunk alone, the last five tokens of one again in the next."""
    semantic, voice = stream_tokens(case)
    overlap = round(read_json("stream.json")["parameters"][case["parameters"]]["overlap"] * 50)
    begin, chunks = 0, []
    for count in case["tokens_handed_to_the_vocoder"]:
        chunks.append(semantic[begin : begin + count])
        begin += count - overlap
    audio = decode(codec(), chunks, [voice] * len(chunks))
    assert [len(chunk) for chunk in audio] == case["chunk_samples"]
    assert_same_audio(np.concatenate(audio), stored(case, "chunks"))


@pytest.mark.parametrize("case", STREAMED, ids=lambda case: f"{case['parameters']}-{case['semantic_tokens']}")
@pytest.mark.parametrize("step", [1, 7, 50])
def test_a_stream_equals_one_call(case: dict[str, Any], step: int) -> None:
    semantic, voice = stream_tokens(case)
    decoder = SpeechDecoder(codec())
    state = decoder.open(voice)
    pieces = [semantic[begin : begin + step] for begin in range(0, len(semantic), step)]
    audio = [decoder.push([TokenPush(state, piece, piece is pieces[-1])])[0] for piece in pieces]
    assert_same_audio(np.concatenate(audio), stored(case, "one_call"))


@pytest.mark.parametrize("case", SPOKEN, ids=lambda case: case["name"])
def test_the_audio_of_the_references_pipeline(case: dict[str, Any]) -> None:
    """From its tokens on; a voice that is cloned has the global tokens of the recording."""
    clip = case["arguments"].get("prompt_speech_path")
    voice = tensors("tokenize")[f"{clip}.global"] if clip else torch.tensor(case["global_tokens"])
    audio = decode(codec(), [np.array(case["semantic"], np.int32)], [tokens(voice)])[0]
    assert_same_audio(audio, PIPELINE[f"{case['name']}.wave"])
