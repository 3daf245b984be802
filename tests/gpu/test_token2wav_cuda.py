"""Flow on CUDA: close to the plain network in any batch, state and failures isolated, recording changes nothing.

Tolerances are signal to error in dB. In 16 bit the plain network itself is 59 dB (float16) and 41 dB (bfloat16) from float32 at full
size; the kernels keep the residual stream in float32 and may be at most a few dB worse.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from bistream.checkpoints.config import CheckpointConfig, EstimatorConfig, FlowConfig, FlowEncoderConfig, VocoderConfig
from bistream.config import RuntimeConfig
from bistream.errors import EngineError
from bistream.mel2wav.factory import make_vocoder
from bistream.token2mel.stage import FlowHop, FlowStage
from bistream.types import VoicePrompt
from tests.unit.mel2wav.tiny import random_state as vocoder_state
from tests.unit.token2mel.random_weights import random_state as flow_state

pytest.importorskip("triton")
if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0):
    pytest.skip("needs a GPU of compute capability 8.0", allow_module_level=True)

from bistream.mel2wav.cuda.runner import CudaVocoderStage
from bistream.token2mel.cuda import tuning
from bistream.token2mel.cuda.batch import Bucket
from bistream.token2mel.cuda.runner import CudaFlowRunner
from bistream.token2mel.first_step import FIRST_CHUNKS
from tests.unet import network_of, pages_of

# the GPU host's torch and triton are not the pinned versions: ignore their warnings
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

# Real widths, the only ones that the kernels support; fewer layers, solver steps and tokens.
SIZES = CheckpointConfig(
    flow=FlowConfig(
        encoder=FlowEncoderConfig(num_blocks=2, num_up_blocks=1), estimator=EstimatorConfig(n_blocks=2, num_mid_blocks=2), n_timesteps=3
    ),
    vocoder=VocoderConfig(),
)
FLOAT16_DB = 50.0
# The same kernels twice; torch may choose different ones for its few matrix products. For few rows, partial sums arrive in any order:
# at full size two runs are 68 dB from one another.
REPEAT_DB = {"few": 60.0, "some": 60.0, "several": 60.0, "many": 80.0}
# One or two buckets of each kind of kernel; larger calls are split into several.
BUCKETS = {"few": (Bucket(64, 4), Bucket(192, 8)), "some": (Bucket(256, 16),), "several": (Bucket(320, 16),), "many": (Bucket(1664, 64),)}
TUNINGS = {"few": tuning.FEW[64], "some": tuning.FEW[256], "several": tuning.FEW[384], "many": tuning.MANY}
KINDS = sorted(BUCKETS)


@cache
def model_dir() -> str:
    directory = tempfile.mkdtemp(prefix="bistream-gpu-")
    torch.save(flow_state(SIZES.flow), Path(directory) / "flow.pt")
    torch.save(vocoder_state(SIZES.vocoder), Path(directory) / "hift.pt")
    return directory


def config(**changes: object) -> RuntimeConfig:
    base = RuntimeConfig(model_dir=model_dir(), device="cuda", flow_state_mb=2000, max_sessions=32, kernels="plain")
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def exact_float32() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def plain_stage(**changes: object) -> FlowStage:
    return FlowStage(config(**changes), SIZES)


def cuda_stage(kind: str, record: bool = True, **changes: object) -> FlowStage:
    """A stage whose runner uses one kind of kernel for all sizes."""
    stage = plain_stage(**changes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bistream.token2mel.cuda.runner.tuning_of", lambda bucket: TUNINGS[kind])
        left = stage.left_context_chunks
        runner = CudaFlowRunner(network_of(stage), pages_of(stage), left, BUCKETS[kind], record)
        if record:
            runner.record()
    stage.runner = runner
    return stage


def prompt(tokens: int, seed: int = 0) -> VoicePrompt:
    rng = np.random.default_rng(seed)
    return VoicePrompt(
        prompt_text="",
        speech_tokens=rng.integers(0, SIZES.flow.vocab_size, tokens).astype(np.int32),
        speech_feat=rng.standard_normal((2 * tokens, SIZES.flow.output_size)).astype(np.float32),
        speaker_embedding=rng.standard_normal(SIZES.flow.spk_embed_dim).astype(np.float32),
    )


def tokens(count: int, seed: int) -> list[int]:
    drawn: list[int] = np.random.default_rng([seed, 7]).integers(0, SIZES.flow.vocab_size, count).tolist()
    return drawn


def speak(stage: FlowStage, voices: Sequence[VoicePrompt], hops: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """All sessions together, hop by hop; returns the whole mel of each. The last hop is final."""
    states = [stage.open(voice) for voice in voices]
    pieces: list[list[torch.Tensor]] = [[] for _ in voices]
    for number, counts in enumerate(hops):
        is_final = number == len(hops) - 1
        given = [
            FlowHop(state, tokens(count, 100 * number + row), is_final)
            for row, (state, count) in enumerate(zip(states, counts, strict=True))
        ]
        for row, mel in enumerate(stage.hop(given)):
            assert isinstance(mel, torch.Tensor), mel
            pieces[row].append(mel.float().cpu())
    for state in states:
        state.close()
    stage.check_integrity()
    return [torch.cat(mels, dim=1) for mels in pieces]


def snr_db(found: torch.Tensor, exact: torch.Tensor) -> float:
    assert found.shape == exact.shape and torch.isfinite(found).all()
    return float(10 * torch.log10(exact.double().square().sum() / (found.double() - exact.double()).square().sum().clamp(min=1e-30)))


VOICES = [prompt(75, 1), prompt(0, 2), prompt(131, 3), prompt(28, 4)]
HOPS = [(18, 18, 1, 40), (25, 13, 60, 0), (1, 30, 25, 2)]


@cache
def exact_mels(left_context_chunks: int = 0) -> list[torch.Tensor]:
    return speak(plain_stage(dtype="float32", left_context_chunks=left_context_chunks), VOICES, HOPS)


@pytest.mark.parametrize("kind", KINDS)
def test_ragged_sessions_match_the_plain_network(kind: str) -> None:
    for found, exact in zip(speak(cuda_stage(kind), VOICES, HOPS), exact_mels(), strict=True):
        assert snr_db(found, exact) > FLOAT16_DB


@pytest.mark.parametrize("kind", KINDS)
def test_bounded_left_context(kind: str) -> None:
    for found, exact in zip(speak(cuda_stage(kind, left_context_chunks=2), VOICES, HOPS), exact_mels(2), strict=True):
        assert snr_db(found, exact) > FLOAT16_DB


@pytest.mark.parametrize("kind", KINDS)
def test_graphs_change_nothing(kind: str) -> None:
    recorded, launched = speak(cuda_stage(kind), VOICES, HOPS), speak(cuda_stage(kind, record=False), VOICES, HOPS)
    for found, exact in zip(recorded, launched, strict=True):
        assert snr_db(found, exact) > REPEAT_DB[kind]


def test_the_configuration_chooses_the_runner() -> None:
    assert isinstance(FlowStage(config(kernels="graphs"), SIZES).runner, CudaFlowRunner)
    assert not isinstance(FlowStage(config(kernels="plain"), SIZES).runner, CudaFlowRunner)
    assert not isinstance(FlowStage(config(kernels="auto", dtype="float32"), SIZES).runner, CudaFlowRunner)
    assert isinstance(make_vocoder(config(kernels="graphs"), SIZES), CudaVocoderStage)
    assert not isinstance(make_vocoder(config(kernels="plain"), SIZES), CudaVocoderStage)


@pytest.mark.parametrize("kind", KINDS)
def test_results_do_not_depend_on_the_batch(kind: str) -> None:
    stage = cuda_stage(kind)
    together = speak(stage, VOICES, HOPS)
    for row, voice in enumerate(VOICES):
        states = stage.open(voice)
        alone = [
            stage.hop([FlowHop(states, tokens(counts[row], 100 * number + row), number == len(HOPS) - 1)])[0]
            for number, counts in enumerate(HOPS)
        ]
        states.close()
        joined = torch.cat([mel.float().cpu() for mel in alone if isinstance(mel, torch.Tensor)], dim=1)
        assert snr_db(together[row], joined) > FLOAT16_DB  # different tiles and splits round differently


def test_a_session_with_nan_fails_alone() -> None:
    stage = cuda_stage("some")
    bad = dataclasses.replace(prompt(10, 9), speaker_embedding=np.full(SIZES.flow.spk_embed_dim, np.nan, np.float32))
    healthy, broken = stage.open(VOICES[0]), stage.open(bad)
    results = stage.hop([FlowHop(broken, tokens(20, 1), False), FlowHop(healthy, tokens(18, 0), False)])
    assert isinstance(results[0], EngineError)
    assert isinstance(results[1], torch.Tensor) and torch.isfinite(results[1]).all()
    healthy.close()
    broken.close()
    again = speak(stage, VOICES, HOPS)  # pages of the failed session are used again
    for found, exact in zip(again, exact_mels(), strict=True):
        assert snr_db(found, exact) > FLOAT16_DB


@pytest.mark.parametrize("kind", ["few", "several"])
@pytest.mark.parametrize("hops", [(500, 10), (60, 500, 60)], ids=str)
def test_a_call_beyond_the_largest_bucket_is_computed(kind: str, hops: tuple[int, ...]) -> None:
    counts = [(count,) for count in hops]
    found = speak(cuda_stage(kind), [prompt(30)], counts)
    exact = speak(plain_stage(dtype="float32"), [prompt(30)], counts)
    assert snr_db(found[0], exact[0]) > FLOAT16_DB


def test_speech_beyond_the_initial_table_of_the_first_step() -> None:
    begin, end = 25 * FIRST_CHUNKS - 10, 40
    found = speak(cuda_stage("many"), [prompt(30)], [(begin,), (end,)])
    exact = speak(plain_stage(dtype="float32"), [prompt(30)], [(begin,), (end,)])
    assert snr_db(found[0], exact[0]) > FLOAT16_DB
    assert snr_db(found[0][:, 2 * (begin - 3) :], exact[0][:, 2 * (begin - 3) :]) > FLOAT16_DB


def test_offline_synthesis_runs_on_the_plain_network() -> None:
    found = cuda_stage("some").synthesize(tokens(60, 1), VOICES[0])
    exact = plain_stage(dtype="float32").synthesize(tokens(60, 1), VOICES[0])
    assert snr_db(found.cpu(), exact.cpu()) > FLOAT16_DB - 5
