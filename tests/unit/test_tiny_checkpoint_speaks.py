"""The output of the random tiny checkpoint is meaningless but plausible: audible, unclipped, dependent on tokens and voice."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from bistream.checkpoints.reader import read_config
from bistream.config import RuntimeConfig
from bistream.mel2wav.stage import VocoderStage
from bistream.text2token.qwen2 import Qwen2Model
from bistream.text2token.weights import load_weights
from bistream.token2mel.stage import FlowStage
from bistream.types import FloatArray, VoicePrompt
from bistream.voice.spk2info import read_spk2info
from scripts.make_checkpoint import make_checkpoint
from tests.formats import SAMPLES_PER_TOKEN

TOKENS = [int(token) for token in np.random.default_rng(0).integers(0, 6561, 50)]


class Speaker:
    """Flow and vocoder of a model directory, offline."""

    def __init__(self, model_dir: Path) -> None:
        config, sizes = RuntimeConfig(model_dir=str(model_dir), device="cpu", dtype="float32", flow_state_mb=64), read_config(model_dir)
        self.flow, self.vocoder = FlowStage(config, sizes), VocoderStage(config, sizes)
        self.voice = read_spk2info(model_dir / "spk2info.pt", lambda ids: "")["001"]

    def mel(self, tokens: Sequence[int], voice: VoicePrompt | None = None) -> torch.Tensor:
        return self.flow.synthesize(tokens, voice or self.voice)

    def say(self, tokens: Sequence[int]) -> FloatArray:
        return self.vocoder.synthesize(self.mel(tokens), seed=0)


@pytest.fixture(scope="module")
def speaker(tiny_model_dir: Path) -> Speaker:
    return Speaker(tiny_model_dir)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_audible_and_not_clipped(tiny_model_dir: Path, tmp_path: Path, seed: int) -> None:
    if seed:
        make_checkpoint(tmp_path / "tiny", "tiny", seed)
    audio = Speaker(tmp_path / "tiny" if seed else tiny_model_dir).say(TOKENS)
    assert audio.shape == (len(TOKENS) * SAMPLES_PER_TOKEN,)
    assert 0.03 < audio.std() < 0.3
    assert abs(audio.mean()) < audio.std()
    assert (np.abs(audio) > 0.98).mean() < 0.001
    loudness = audio.reshape(-1, SAMPLES_PER_TOKEN).std(axis=1)
    assert loudness.min() > 0.3 * loudness.mean()  # no gaps


def test_pitch_is_that_of_a_voice(speaker: Speaker) -> None:
    f0 = speaker.vocoder.hift.f0(speaker.mel(TOKENS)[None].float())
    assert 60 < f0.min() < f0.max() < 400
    assert f0.std() > 3


def test_tokens_and_voice_move_the_mel(speaker: Speaker) -> None:
    mel = speaker.mel(TOKENS)
    assert 0.5 < mel.std() < 3
    assert (speaker.mel(TOKENS[::-1]) - mel).std() > 0.3
    other = dataclasses.replace(speaker.voice, speaker_embedding=speaker.voice.speaker_embedding[::-1].copy())
    assert (speaker.mel(TOKENS, other) - mel).std() > 0.05


def test_language_model_prefers_a_few_tokens_and_seldom_ends(tiny_model_dir: Path) -> None:
    config = read_config(tiny_model_dir).language_model
    model = Qwen2Model(config, load_weights(tiny_model_dir, config, torch.device("cpu"), torch.float32))
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(0, 1000, (20,), generator=generator)
    speech = config.text_vocab_size + torch.randint(0, 6561, (100,), generator=generator)
    with torch.inference_mode():
        probabilities = model.logits(model.forward_dense(torch.cat([text, speech]))).softmax(dim=-1)[len(text) :]
    assert 0.2 < probabilities.topk(25).values.sum(dim=-1).mean() < 0.95
    assert probabilities[:, config.speech_token_size :].sum(dim=-1).mean() < 0.01
    assert len(set(probabilities.argmax(dim=-1).tolist())) > 50
