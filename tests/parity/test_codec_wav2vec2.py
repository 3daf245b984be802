"""wav2vec2 against transformers' outputs, as the reference calls it. Tolerances: tests/golden_spark/README.md.

The set also has the state behind the last layer and norm, which are not computed here.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from bistream.bicodec.recording import unit_variance
from bistream.bicodec.wav2vec2 import NUM_LAYERS, Wav2Vec2
from tests.parity.golden_spark import read_json, tensors
from tests.parity.spark_codec import assert_close, networks

DATA = tensors("wav2vec2")
RECORDINGS = sorted(match[1] for key in DATA if (match := re.fullmatch(r"(\w+)\.input_values", key)))
STATES = sorted(key for key in DATA if (match := re.search(r"\.hidden_states\.(\d+)$", key)) and int(match[1]) <= NUM_LAYERS)
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def wav2vec2() -> Wav2Vec2:
    return networks()[1]


def test_there_are_cases() -> None:
    assert len(RECORDINGS) >= 2 and len(STATES) >= 4


@pytest.mark.parametrize("name", RECORDINGS)
def test_features(wav2vec2: Wav2Vec2, name: str) -> None:
    values = DATA[f"{name}.input_values"]
    frames = wav2vec2.config.frames(values.shape[1])
    assert frames == (values.shape[1] - 400) // 320 + 1 == read_json("wav2vec2_info.json")[name]["frames"]
    assert_close(wav2vec2.features(values), DATA[f"{name}.features"], TOLERANCE)


@pytest.mark.parametrize("key", STATES)
@torch.inference_mode()
def test_states(wav2vec2: Wav2Vec2, key: str) -> None:
    name, _, number = key.split(".")
    states = list(wav2vec2.states(DATA[f"{name}.input_values"]))
    assert_close(states[int(number)], DATA[key], TOLERANCE)


@torch.inference_mode()
def test_convolutions(wav2vec2: Wav2Vec2) -> None:
    for key in (key for key in DATA if key.endswith(".conv_features_normed")):
        values = DATA[key.replace("conv_features_normed", "input_values")]
        assert_close(wav2vec2.normed_frames(values), DATA[key], TOLERANCE)


def test_a_pair_as_the_references_runtime_runs_it(wav2vec2: Wav2Vec2) -> None:
    """With zeros behind the shorter one, which its features hear: why recordings run alone here. That runtime leaves the volume alone."""
    waves = [tensors("frontend")[f"{name}.wave"].numpy() for name in ("long", "short")]
    values = [unit_variance(wave) for wave in waves]
    padded = np.stack([np.pad(row, (0, max(map(len, values)) - len(row))) for row in values])
    end = len(values[1])
    np.testing.assert_allclose(
        padded[1, end - 800 : end + 800], DATA["pair.second_row_input_values_from_minus_800_to_800"].numpy(), rtol=0, atol=1e-5
    )
    found = wav2vec2.features(torch.from_numpy(padded))
    assert_close(found, DATA["pair.features"], TOLERANCE)
    alone = wav2vec2.features(torch.from_numpy(values[1])[None])[0]
    assert (found[1, : len(alone)] - alone).abs().max() > 0.1
