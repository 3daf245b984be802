"""CosyVoice3's flow in recorded graphs: close to the plain network in any batch, failures isolated.

Tolerances are signal to error in dB.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from bistream.checkpoints.config import CheckpointConfig, DitConfig, DitFlowConfig
from bistream.config import RuntimeConfig
from bistream.errors import EngineError
from bistream.token2mel.dit.graphs.batch import BatchSize
from bistream.token2mel.dit.graphs.operations import linear_gelu_in_one
from bistream.token2mel.dit.graphs.runner import DitGraphRunner
from bistream.token2mel.dit.network import DitFlow
from bistream.token2mel.dit.pages import DitPages
from bistream.token2mel.stage import FlowHop, FlowStage
from bistream.types import VoicePrompt
from tests.gpu.checks import Draw
from tests.plain_dit import linear_gelu
from tests.unit.token2mel.random_weights import random_state

# the GPU host's torch and triton are not the pinned versions: ignore their warnings
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

FLOW = DitFlowConfig(dit=DitConfig(depth=3), n_timesteps=3)  # real widths; fewer blocks and solver steps
SIZES = (BatchSize(100, 4, 8), BatchSize(800, 32, 64))
FLOAT16_DB = 40.0
REPEAT_DB = 80.0  # the same kernels twice; the library may choose different ones for matrix products while recording


@cache
def model_dir() -> str:
    directory = tempfile.mkdtemp(prefix="bistream-gpu-")
    torch.save(random_state(FLOW), Path(directory) / "flow.pt")
    return directory


def plain_stage(**changes: object) -> FlowStage:
    base = RuntimeConfig(model_dir=model_dir(), device="cuda", flow_state_mb=2000, max_sessions=32, kernels="plain")
    return FlowStage(dataclasses.replace(base, **changes), CheckpointConfig(flow=FLOW))  # type: ignore[arg-type]


def graph_stage(record: bool = True, **changes: object) -> FlowStage:
    """A stage with these batch sizes only, since each takes seconds to record."""
    stage = plain_stage(**changes)
    assert isinstance(stage.runner.network, DitFlow) and isinstance(stage.pages, DitPages)
    stage.runner = DitGraphRunner(stage.runner.network, stage.pages, stage.left_context_chunks, SIZES)
    if record:
        stage.runner.record()
    return stage


def prompt(tokens: int, seed: int = 0) -> VoicePrompt:
    rng = np.random.default_rng(seed)
    return VoicePrompt(
        prompt_text="",
        speech_tokens=rng.integers(0, FLOW.vocab_size, tokens).astype(np.int32),
        speech_feat=rng.standard_normal((2 * tokens, FLOW.output_size)).astype(np.float32),
        speaker_embedding=rng.standard_normal(FLOW.spk_embed_dim).astype(np.float32),
    )


def tokens(count: int, seed: int) -> list[int]:
    drawn: list[int] = np.random.default_rng([seed, 7]).integers(0, FLOW.vocab_size, count).tolist()
    return drawn


def speak(stage: FlowStage, voices: Sequence[VoicePrompt], hops: Sequence[Sequence[int]], first_row: int = 0) -> list[Tensor]:
    """All sessions together, hop by hop; returns the whole mel of each. The last hop is final."""
    states = [stage.open(voice) for voice in voices]
    pieces: list[list[Tensor]] = [[] for _ in voices]
    for number, counts in enumerate(hops):
        given = [
            FlowHop(state, tokens(count, 100 * number + first_row + row), number == len(hops) - 1)
            for row, (state, count) in enumerate(zip(states, counts, strict=True))
        ]
        for row, mel in enumerate(stage.hop(given)):
            assert isinstance(mel, Tensor), mel
            pieces[row].append(mel.float().cpu())
    for state in states:
        state.close()
    stage.check_integrity()
    return [torch.cat(mels, dim=1) for mels in pieces]


def snr_db(found: Tensor, exact: Tensor) -> float:
    assert found.shape == exact.shape and torch.isfinite(found).all()
    return float(10 * torch.log10(exact.double().square().sum() / (found.double() - exact.double()).square().sum().clamp(min=1e-30)))


VOICES = [prompt(75, 1), prompt(0, 2), prompt(131, 3), prompt(28, 4)]
HOPS = [(18, 18, 1, 40), (25, 13, 60, 0), (1, 30, 25, 2)]


@cache
def exact_mels(left_context_chunks: int = 0) -> Sequence[torch.Tensor]:
    return speak(plain_stage(dtype="float32", left_context_chunks=left_context_chunks), VOICES, HOPS)


@cache
def recorded_stage() -> FlowStage:
    return graph_stage()


def test_a_product_that_ends_with_gelu() -> None:
    draw = Draw("gelu")
    x, weight, bias = draw.normal(200, 1024).half(), (0.03 * draw.normal(2048, 1024)).half(), draw.normal(2048).half()
    exact = linear_gelu(x.float(), weight.float(), bias.float())
    assert snr_db(linear_gelu_in_one(x, weight, bias).float(), exact) > 55.0


def test_the_configuration_chooses_the_runner() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bistream.token2mel.dit.graphs.batch.CHUNKS", (2, 16))
        stage = plain_stage(kernels="auto")
    assert isinstance(stage.runner, DitGraphRunner)
    for found, exact in zip(speak(stage, VOICES, HOPS), exact_mels(), strict=True):
        assert snr_db(found, exact) > FLOAT16_DB


@pytest.mark.parametrize("left", [0, 1, 2])
def test_it_is_close_to_float32(left: int) -> None:
    stage = recorded_stage() if not left else graph_stage(left_context_chunks=left)
    for found, exact in zip(speak(stage, VOICES, HOPS), exact_mels(left), strict=True):
        assert snr_db(found, exact) > FLOAT16_DB


def test_recording_changes_nothing() -> None:
    for found, exact in zip(speak(recorded_stage(), VOICES, HOPS), speak(graph_stage(record=False), VOICES, HOPS), strict=True):
        assert snr_db(found, exact) > REPEAT_DB


@pytest.mark.parametrize("row", [0, 2])
def test_results_do_not_depend_on_the_batch(row: int) -> None:
    together = speak(recorded_stage(), VOICES, HOPS)
    alone = speak(recorded_stage(), [VOICES[row]], [[counts[row]] for counts in HOPS], first_row=row)
    assert snr_db(alone[0], together[row]) > FLOAT16_DB


def test_nan_fails_its_session_alone_and_does_not_outlive_it() -> None:
    stage = recorded_stage()
    features = VOICES[3].speech_feat.copy()
    features[-1] = np.nan
    voices = [*VOICES[:3], dataclasses.replace(VOICES[3], speech_feat=features)]
    states = [stage.open(voice) for voice in voices]
    results = stage.hop([FlowHop(state, tokens(18, row), False) for row, state in enumerate(states)])
    assert [isinstance(result, EngineError) for result in results] == [False, False, False, True]
    for state in states:
        state.close()
    for found, exact in zip(speak(stage, VOICES, HOPS), exact_mels(), strict=True):
        assert snr_db(found, exact) > FLOAT16_DB
