"""What the client of Spark-TTS's runtime plays of chunks: the reference's, faults included, and ours of the same audio.

Tolerances: tests/golden_spark/README.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bistream.transport.overlap import OverlappingChunks
from bistream.types import FloatArray
from tests.parity.golden_spark import read_json, tensors
from tests.triton.upstream_clients import SPARK_FADE, cross_faded

CASES = read_json("stream.json")["cases"]
STREAM = tensors("stream")
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['parameters']}-{case['semantic_tokens']}")


def noise(samples: int) -> FloatArray:
    return np.random.default_rng(samples).uniform(-1, 1, samples).astype(np.float32)


@each_case
def test_the_client_joins_the_references_chunks_as_recorded(case: dict[str, Any]) -> None:
    """Lengths, crashes, and the audio where it is stored: what the other tests take for upstream's client is upstream's client."""
    name = f"{case['parameters']}_{case['semantic_tokens']}"
    chunks = list(map(noise, case["chunk_samples"]))
    if case["client_error"]:
        with pytest.raises(ValueError, match="broadcast"):
            cross_faded(chunks)
        return
    assert cross_faded(chunks).size == case["client_samples"] == case["one_call_samples"] + case["surplus_samples"]
    if case["audio_stored"]:
        stored = np.split(STREAM[f"{name}.chunks"].numpy(), np.cumsum(case["chunk_samples"])[:-1])
        np.testing.assert_allclose(cross_faded(stored), STREAM[f"{name}.client"].numpy(), rtol=0, atol=1e-6)


@each_case
def test_the_client_plays_our_chunks_without_loss_or_surplus(case: dict[str, Any]) -> None:
    """The audio of one call, in the pieces that the reference's schedule has: what is new in each of its chunks."""
    name, new = f"{case['parameters']}_{case['semantic_tokens']}.one_call", [case["chunk_samples"][0]]
    new += [size - SPARK_FADE for size in case["chunk_samples"][1:]]
    audio = STREAM[name].numpy() if name in STREAM else noise(case["one_call_samples"])
    chunks = OverlappingChunks(SPARK_FADE)
    pieces = np.split(audio, np.minimum(np.cumsum(new), audio.size)[:-1])
    sent = [chunk for chunk in (*map(chunks.push, pieces), chunks.end()) if chunk.size]
    np.testing.assert_allclose(cross_faded(sent), audio, rtol=0, atol=1e-7)
