"""CosyVoice3's vocoder in recorded graphs on CUDA, at the released size: close to float32, recording changes nothing, sessions isolated.

Tolerances are signal to error in dB.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from bistream.checkpoints.config import CausalVocoderConfig, CheckpointConfig, DitFlowConfig
from bistream.config import RuntimeConfig
from bistream.gpu.tier import Tier
from bistream.mel2wav.causal.graphs.stage import BUCKETS, CausalGraphStage
from bistream.mel2wav.causal.stage import CausalVocoderStage
from bistream.mel2wav.factory import make_plain, make_vocoder, vocoder_tier
from bistream.mel2wav.hop_plan import Bucket
from bistream.mel2wav.stage import VocoderHop
from bistream.types import FloatArray
from tests.unit.mel2wav.speaking import speak
from tests.unit.mel2wav.tiny import random_state, voiced_mel

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

# the GPU host's torch and triton are not the pinned versions: ignore their warnings
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

SIZES = CausalVocoderConfig()
RELEASED = CheckpointConfig(flow=DitFlowConfig(), vocoder=SIZES)
SESSIONS = 70
FLOAT16_DB = 45.0
REPEAT_DB = 80.0  # the same kernels twice; cuDNN may sum in any order
CUTS = [((30, 50, 9, 50), 0), ((12, 20, 300, 41), 1), ((3, 40, 0, 7), 0)]


@cache
def model_dir() -> str:
    directory = tempfile.mkdtemp(prefix="bistream-gpu-")
    torch.save(random_state(SIZES), Path(directory) / "hift.pt")
    return directory


def config(**changes: object) -> RuntimeConfig:
    base = RuntimeConfig(model_dir=model_dir(), device="cuda", max_sessions=SESSIONS, kernels="plain")
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def exact_reference() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@cache
def plain() -> CausalVocoderStage:
    stage = make_plain(config(), RELEASED)
    assert isinstance(stage, CausalVocoderStage)
    return stage


@cache
def graphs() -> CausalGraphStage:
    stage = CausalGraphStage(config(), SIZES, plain())
    stage.record()
    return stage


@cache
def unrecorded() -> CausalGraphStage:
    return CausalGraphStage(config(), SIZES, plain(), record=False)


def snr_db(found: FloatArray, exact: FloatArray) -> float:
    assert found.shape == exact.shape and np.isfinite(found).all()
    error = np.square(found.astype(np.float64) - exact).sum()
    return float(10 * np.log10(np.square(exact.astype(np.float64)).sum() / max(error, 1e-30)))


@pytest.mark.parametrize("count", [1, 3, 20, SESSIONS])
def test_it_is_close_to_float32(count: int) -> None:
    sessions = [CUTS[row % len(CUTS)] for row in range(count)]
    for found, exact in zip(speak(graphs(), sessions), speak(plain(), sessions), strict=True):
        assert [len(piece) for piece in found] == [len(piece) for piece in exact]
        assert snr_db(np.concatenate(found), np.concatenate(exact)) > FLOAT16_DB


@pytest.mark.parametrize("bucket", BUCKETS, ids=str)
def test_every_bucket_replays_what_it_computes(bucket: Bucket) -> None:
    """A full bucket, recorded, unrecorded and plain: a first hop, and one that continues from its state."""
    mel = voiced_mel(2 * bucket.frames, seed=bucket.frames).cuda()
    audio = []
    for stage in (graphs(), unrecorded(), plain()):
        states = [stage.open(seed) for seed in range(bucket.rows)]
        pieces = []
        for begin, end in ((0, bucket.frames), (bucket.frames, 2 * bucket.frames - 4)):
            pieces.append(np.stack(stage.hop([VocoderHop(state, mel[:, begin:end], False) for state in states])))
        for state in states:
            state.close()
        audio.append(np.concatenate(pieces, axis=1))
    assert snr_db(audio[0], audio[1]) > REPEAT_DB
    assert snr_db(audio[0], audio[2]) > FLOAT16_DB


def test_nan_stays_in_its_session_and_does_not_outlive_it() -> None:
    sessions = [CUTS[row % len(CUTS)] for row in range(20)]
    exact = speak(plain(), sessions)
    found = speak(graphs(), sessions, broken=(0, 7, 19))
    for row, (pieces, others) in enumerate(zip(found, exact, strict=True)):
        if row in (0, 7, 19):
            assert not np.isfinite(np.concatenate(pieces)).all()
        else:
            assert snr_db(np.concatenate(pieces), np.concatenate(others)) > FLOAT16_DB
    for pieces, others in zip(speak(graphs(), sessions), exact, strict=True):
        assert snr_db(np.concatenate(pieces), np.concatenate(others)) > FLOAT16_DB


def test_the_configuration_chooses_it() -> None:
    assert vocoder_tier(config(kernels="auto"), RELEASED).tier is Tier.GRAPHS
    assert isinstance(make_vocoder(config(kernels="auto"), RELEASED), CausalGraphStage)
    assert isinstance(make_vocoder(config(kernels="plain"), RELEASED), CausalVocoderStage)
