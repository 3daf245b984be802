"""CosyVoice3's flow and vocoder, loaded from files, behind the renderer and the service."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from bistream.checkpoints.config import CheckpointConfig
from bistream.config import RuntimeConfig
from bistream.gpu.steps import finish
from bistream.gpu.tier import Tier
from bistream.mel2wav.causal.stage import CausalVocoderStage
from bistream.mel2wav.causal.weights import expected_shapes as vocoder_shapes
from bistream.mel2wav.stretch import MelStretch
from bistream.token2mel.dit.network import DitFlow
from bistream.token2mel.dit.weights import expected_shapes as flow_shapes
from bistream.token2mel.stage import FlowHop, FlowStage
from bistream.token2wav.renderer import FLOW_PAGES, RendererHop, sizes_of
from bistream.token2wav.service import Token2Wav, Token2WavHop
from bistream.token2wav.speech_stages import SpeechStages
from bistream.types import FloatArray, VoicePrompt
from scripts._random_weights import Drawer, flow_state, vocoder_state
from scripts.make_checkpoint import TINY_CAUSAL_HIFT as TINY_VOCODER
from scripts.make_checkpoint import TINY_DIT as TINY_FLOW
from tests.formats import SAMPLES_PER_TOKEN

WAIT_S = 300.0  # longer than a busy machine takes
CHECKPOINT = CheckpointConfig(flow=TINY_FLOW, vocoder=TINY_VOCODER)
EXACT = 2e-3  # of audio (standard deviation 0.05): rounding of the mel (2e-6) moves f0, which the source sums. Seen: 6e-4


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> RuntimeConfig:
    directory, drawer = tmp_path_factory.mktemp("model"), Drawer(0)
    torch.save(flow_state(drawer, flow_shapes(TINY_FLOW)), directory / "flow.pt")
    torch.save(vocoder_state(drawer, vocoder_shapes(TINY_VOCODER), TINY_VOCODER), directory / "hift.pt")
    return RuntimeConfig(model_dir=str(directory), device="cpu", flow_state_mb=64, drain_timeout_s=0.0)


@pytest.fixture(scope="module")
def stages(config: RuntimeConfig) -> SpeechStages:
    return SpeechStages.load(config, CHECKPOINT, sizes_of(CHECKPOINT))


def voice(tokens: int, seed: int = 0) -> VoicePrompt:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, TINY_FLOW.vocab_size, tokens).astype(np.int32)
    features = rng.standard_normal((2 * tokens, 80)).astype(np.float32)
    return VoicePrompt("", codes, features, rng.standard_normal(192).astype(np.float32))


def speech(count: int, seed: int = 0) -> list[int]:
    tokens: list[int] = np.random.default_rng([seed, 1]).integers(0, TINY_FLOW.vocab_size, count).tolist()
    return tokens


def render(stages: SpeechStages, prompt: VoicePrompt, pieces: list[list[int]], speed: float = 1.0) -> FloatArray:
    rendering, found = stages.open(prompt, 0), []
    for index, piece in enumerate(pieces):
        (waveform,) = stages.begin([RendererHop(rendering, piece, index == len(pieces) - 1, speed=speed)]).finish()
        assert isinstance(waveform, np.ndarray), waveform
        found.append(waveform)
    rendering.close()
    return np.concatenate(found)


def test_the_factories_choose_by_the_sizes(stages: SpeechStages) -> None:
    assert isinstance(stages.flow.runner.network, DitFlow) and isinstance(stages.vocoder, CausalVocoderStage)
    assert [choice.tier for choice in stages.tiers] == [Tier.PLAIN, Tier.PLAIN]
    assert set(stages.pools) == {FLOW_PAGES}


def test_chunks_join_where_only_rounding_could_tell_hops_apart(stages: SpeechStages, config: RuntimeConfig) -> None:
    """Not on a CPU, where equal sessions are equal to the last bit; nor with a context that is counted from the hop."""
    assert stages.flow.chunks_join and stages.vocoder.joins_exactly and not stages.sizes.chunks_join
    assert not FlowStage(replace(config, left_context_chunks=3), CheckpointConfig(flow=stages.flow.config)).chunks_join


def test_chunk_aligned_hops_do_not_change_the_audio(stages: SpeechStages) -> None:
    prompt, tokens = voice(50), speech(130)
    whole = render(stages, prompt, [tokens])
    assert len(whole) == SAMPLES_PER_TOKEN * len(tokens)
    for cuts in ([28, 53, 128], [78, 103]):
        begins = [0, *cuts]
        found = render(stages, prompt, [tokens[begin:end] for begin, end in zip(begins, [*cuts, None], strict=True)])
        assert np.abs(found - whole).max() <= EXACT
    stages.flow.check_integrity()


def test_at_another_speed_the_vocoder_speaks_the_stretched_mel(stages: SpeechStages) -> None:
    """Whatever the hops: 32 tokens are 64 frames, 51 of audio."""
    prompt, tokens = voice(50), speech(32)
    (mel,) = stages.flow.hop([FlowHop(state := stages.flow.open(prompt), tokens, True)])
    state.close()
    assert isinstance(mel, torch.Tensor)
    stretch = MelStretch()
    stretch.expect(64, 1.25)
    expected = finish(stages.vocoder.synthesis(stretch.push(mel, True), 0))
    assert len(expected) == 51 * 480
    for cuts in ([], [28], [3, 11, 28]):
        begins = [0, *cuts]
        found = render(stages, prompt, [tokens[begin:end] for begin, end in zip(begins, [*cuts, None], strict=True)], speed=1.25)
        assert len(found) == len(expected)
        if cuts != [3, 11, 28]:  # an incomplete chunk is rendered with less context
            assert np.abs(found - expected).max() <= EXACT


def test_the_service_speaks_in_any_company(config: RuntimeConfig, stages: SpeechStages) -> None:
    service = Token2Wav(config, renderer=stages)
    try:
        pieces = {seed: [speech(28, seed), speech(25 + seed, seed + 10), speech(9, seed + 20)] for seed in range(3)}
        found: dict[int, list[FloatArray]] = {seed: [] for seed in pieces}
        waiting = []
        for turn in range(3):
            for seed, parts in pieces.items():
                prompt = voice(30 + seed, seed) if turn == 0 else None
                waiting.append((seed, service.hop(Token2WavHop(f"session-{seed}", tuple(parts[turn]), turn == 2, prompt))))
        for seed, future in waiting:
            found[seed].append(future.result(timeout=WAIT_S))
        offline = service.synthesize(speech(40), voice(20), speed=1.3).result(timeout=WAIT_S)
    finally:
        service.close()
    for seed, parts in pieces.items():
        assert np.abs(np.concatenate(found[seed]) - render(stages, voice(30 + seed, seed), parts)).max() <= EXACT
    assert len(offline) == 480 * int(80 / 1.3) and np.isfinite(offline).all()
    assert stages.flow.pool.available == stages.flow.pool.total


def test_a_batch_stops_between_solver_steps_and_goes_on(stages: SpeechStages) -> None:
    prompt, tokens = voice(30), speech(60)
    expected = render(stages, prompt, [tokens])
    slow, urgent = stages.open(prompt, 0), stages.open(voice(10, 3), 0)
    batch = stages.begin([RendererHop(slow, tokens, True)])
    left = []
    while batch.steps_left:
        left.append(batch.steps_left)
        batch.step()
        if len(left) == 4:
            (waveform,) = stages.begin([RendererHop(urgent, speech(20), True)]).finish()
            assert isinstance(waveform, np.ndarray) and len(waveform) == 20 * SAMPLES_PER_TOKEN
    assert left == list(range(TINY_FLOW.n_timesteps, 0, -1))
    (found,) = batch.finish()
    assert isinstance(found, np.ndarray) and np.array_equal(found, expected)
    slow.close()
    urgent.close()
