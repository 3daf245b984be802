"""Spark-TTS's tokens of recordings against the reference's. Tolerances: tests/golden_spark/README.md."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from bistream.bicodec.quantizers import ScalarQuantizer
from bistream.bicodec.recording import mel_frames, reference_clip
from bistream.bicodec.signal import WholeSignals
from tests.parity.golden_spark import tensors
from tests.parity.spark_codec import assert_close, codec, reader

DATA, WAVES = tensors("tokenize"), tensors("frontend")
RECORDINGS = sorted(match[1] for key in DATA if (match := re.fullmatch(r"(\w+)\.semantic", key)))
LEVELS = sorted(match[1] for key in DATA if (match := re.fullmatch(r"(fsq[\d_]*)\.x", key)))


def levels_of(name: str) -> tuple[int, ...]:
    return tuple(int(digit) for digit in name.split("_")[1:]) or codec().config.speaker.levels


def test_there_are_cases() -> None:
    assert len(RECORDINGS) >= 2 and len(LEVELS) >= 3


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_recording_to_its_tokens(name: str) -> None:
    voice = reader().read(WAVES[f"{name}.wave"].numpy())
    np.testing.assert_array_equal(voice.semantic_tokens, DATA[f"{name}.semantic"][0].numpy())
    np.testing.assert_array_equal(voice.global_tokens, DATA[f"{name}.global"].flatten().numpy())


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_references_runtime_does_not_normalize_the_volume(name: str) -> None:
    wave = WAVES[f"{name}.wave"].numpy()
    np.testing.assert_array_equal(reader().semantic_tokens(wave), DATA[f"{name}.triton.semantic"][0].numpy())
    np.testing.assert_array_equal(reader().global_tokens(wave), DATA[f"{name}.triton.global"].flatten().numpy())


@pytest.mark.parametrize("name", RECORDINGS)
@torch.inference_mode()
def test_between_recording_and_tokens(name: str) -> None:
    network = codec()
    encoded = network.encoder(DATA[f"{name}.features"].transpose(1, 2), WholeSignals())
    assert_close(encoded, DATA[f"{name}.encoder_out"], 1e-4)
    clip = reference_clip(reader().prepared(WAVES[f"{name}.wave"].numpy()).astype(np.float64), network.config.recording)
    speaker = network.speaker_encoder
    latents = speaker.latents(torch.from_numpy(mel_frames(clip, network.config.mel))[None])
    assert_close(latents, DATA[f"{name}.perceiver_out"], 2e-4)
    assert_close(speaker.rounding.bounded(speaker.quantizer["project_in"](latents)), DATA[f"{name}.fsq_bounded"], 2e-4)


@torch.inference_mode()
def test_semantic_quantizer() -> None:
    quantizer = codec().quantizer
    z = DATA["vq.z"]
    assert_close(quantizer.in_project(z), DATA["vq.z_e"], 1e-5)
    tokens = quantizer.tokens(z)
    assert torch.equal(tokens, DATA["vq.indices"]) and torch.equal(tokens, DATA["vq.tokenize"])
    assert_close(quantizer.codebook.weight[tokens].transpose(1, 2), DATA["vq.z_q_codebook_rows"], 1e-6)
    assert_close(quantizer.vectors(tokens), DATA["vq.detokenize"], 1e-5)


@pytest.mark.parametrize("name", LEVELS)
def test_scalar_quantizer(name: str) -> None:
    quantizer = ScalarQuantizer(levels_of(name))
    tokens = quantizer.tokens(DATA[f"{name}.x"])
    assert torch.equal(tokens, DATA[f"{name}.indices"].long())
    assert_close(quantizer.values(tokens), DATA[f"{name}.codes"], 1e-6)


def test_all_values_of_global_tokens() -> None:
    quantizer = ScalarQuantizer(codec().config.speaker.levels)
    assert_close(quantizer.bounded(DATA["fsq.x"]), DATA["fsq.bounded"], 1e-5)
    assert_close(quantizer.values(torch.arange(codec().config.speaker.codes)), DATA["fsq.codebook"], 1e-6)
    for name in LEVELS:
        every = DATA.get(f"{name}.codes_of_every_9th_index")
        if every is not None:
            assert_close(ScalarQuantizer(levels_of(name)).values(9 * torch.arange(len(every))), every, 1e-6)
