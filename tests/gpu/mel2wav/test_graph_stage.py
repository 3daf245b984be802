"""The middle tier's vocoder on CUDA, at the released size: close to float32, recording changes nothing, sessions and failures are isolated.

Tolerances are signal to error in dB; in 16 bit the plain network itself is some 55 dB from float32.
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

from bistream.checkpoints.config import CheckpointConfig, VocoderConfig
from bistream.config import RuntimeConfig
from bistream.errors import BusyError
from bistream.mel2wav.factory import make_vocoder
from bistream.mel2wav.graphs.stage import GraphOptions, GraphVocoderStage
from bistream.mel2wav.hop_plan import BUCKETS, Bucket, bucket_of
from bistream.mel2wav.stage import VocoderHop, VocoderStage
from bistream.types import FloatArray
from tests.unit.mel2wav.tiny import random_state, voiced_mel

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

# the GPU host's torch and triton are not the pinned versions: ignore their warnings
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

RELEASED = CheckpointConfig()
ODD = CheckpointConfig(  # more residual blocks than our kernels support, and of unequal depth
    vocoder=VocoderConfig(
        base_channels=96, f0_channels=48, resblock_kernel_sizes=(3, 5, 7, 3), resblock_dilation_sizes=((1, 2), (2,), (1,), (3,))
    )
)  # fmt: skip
SESSIONS = 70
FLOAT16_DB = 45.0
REPEAT_DB = 80.0  # the same kernels twice; cuDNN may sum in any order
COMPANY_DB = 45.0  # other buckets have other kernels, and both sides are in 16 bit
CUTS = [(30, 50, 9, 50), (12, 20, 300, 41), (3, 40, 0, 7)]


@cache
def model_dir(sizes: CheckpointConfig) -> str:
    directory = tempfile.mkdtemp(prefix="bistream-gpu-")
    torch.save(random_state(sizes.vocoder), Path(directory) / "hift.pt")
    return directory


def config(sizes: CheckpointConfig, **changes: object) -> RuntimeConfig:
    base = RuntimeConfig(model_dir=model_dir(sizes), device="cuda", max_sessions=SESSIONS, kernels="plain")
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def exact_reference() -> Iterator[None]:
    """The plain stage in float32 without TF32; the tier under test must not depend on these flags."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@cache
def plain(sizes: CheckpointConfig = RELEASED) -> VocoderStage:
    return VocoderStage(config(sizes), sizes)


@cache
def graphs(sizes: CheckpointConfig = RELEASED, options: GraphOptions | None = None) -> GraphVocoderStage:
    stage = GraphVocoderStage(config(sizes), sizes, options=options)
    stage.record()
    return stage


@cache
def unrecorded() -> GraphVocoderStage:
    return GraphVocoderStage(config(RELEASED), RELEASED, record=False)


def speak(stage: VocoderStage, rows: Sequence[int], broken: Sequence[int] = ()) -> list[FloatArray]:
    """Sessions with the cuts of CUTS in turn, advanced together hop by hop. broken: those whose mel is NaN."""
    states = {row: stage.open(row * 1_000_003 - 1) for row in rows}
    cuts = {row: CUTS[row % len(CUTS)] for row in rows}
    mels = {row: voiced_mel(sum(cuts[row]), seed=row + 1).cuda() for row in rows}
    for row in broken:
        mels[row].fill_(float("nan"))
    pieces: dict[int, list[FloatArray]] = {row: [] for row in rows}
    for turn in range(len(CUTS[0])):
        begins = {row: sum(cuts[row][:turn]) for row in rows}
        hops = [VocoderHop(states[row], mels[row][:, begins[row] : begins[row] + cuts[row][turn]], turn == 3) for row in rows]
        for row, piece in zip(rows, stage.hop(hops), strict=True):
            pieces[row].append(piece)
    for state in states.values():
        state.close()
    return [np.concatenate(pieces[row]) for row in rows]


def snr_db(found: FloatArray, exact: FloatArray) -> float:
    assert found.shape == exact.shape and np.isfinite(found).all()
    error = np.square(found.astype(np.float64) - exact).sum()
    return float(10 * np.log10(np.square(exact.astype(np.float64)).sum() / max(error, 1e-30)))


@cache
def exact_audio(sizes: CheckpointConfig, count: int) -> list[FloatArray]:
    return speak(plain(sizes), range(count))


def check(found: Sequence[FloatArray], exact: Sequence[FloatArray], least_db: float) -> None:
    for one, other in zip(found, exact, strict=True):
        assert snr_db(one, other) > least_db


@pytest.mark.parametrize("count", [1, 3, 20, SESSIONS])
def test_it_is_close_to_float32(count: int) -> None:
    check(speak(graphs(), range(count)), exact_audio(RELEASED, count), FLOAT16_DB)


def test_other_sizes_and_the_other_layout() -> None:
    check(speak(graphs(ODD), range(3)), exact_audio(ODD, 3), FLOAT16_DB)
    check(speak(graphs(ODD, GraphOptions(channels_last=False)), range(3)), exact_audio(ODD, 3), FLOAT16_DB)


@pytest.mark.parametrize("bucket", BUCKETS, ids=str)
def test_every_bucket_replays_what_it_computes(bucket: Bucket) -> None:
    """A full bucket, recorded, unrecorded and plain: a first hop, and one that continues from its state."""
    mel = voiced_mel(2 * bucket.frames, seed=bucket.frames).cuda()
    audio = []
    for stage in (graphs(), unrecorded(), plain()):
        states = [stage.open(seed) for seed in range(bucket.rows)]
        pieces = []
        for begin, end in ((0, bucket.frames), (bucket.frames, 2 * bucket.frames - 16)):
            assert bucket_of(len(states), bucket.frames) == bucket
            pieces.append(np.stack(stage.hop([VocoderHop(state, mel[:, begin:end], False) for state in states])))
        for state in states:
            state.close()
        audio.append(np.concatenate(pieces, axis=1))
    assert snr_db(audio[0], audio[1]) > REPEAT_DB
    assert snr_db(audio[0], audio[2]) > FLOAT16_DB


@pytest.mark.parametrize("row", [0, 2])
def test_results_do_not_depend_on_the_batch(row: int) -> None:
    together, alone = speak(graphs(), range(20)), speak(graphs(), [row])
    check(alone, [together[row]], COMPANY_DB)


def test_nan_stays_in_its_session_and_does_not_outlive_it() -> None:
    exact = exact_audio(RELEASED, 20)
    found = speak(graphs(), range(20), broken=(0, 7, 19))
    for row in range(20):
        if row in (0, 7, 19):
            assert not np.isfinite(found[row]).all()
        else:
            assert snr_db(found[row], exact[row]) > FLOAT16_DB
    check(speak(graphs(), range(20)), exact, FLOAT16_DB)


def test_allowing_tf32_in_the_process_changes_nothing() -> None:
    exact = exact_audio(RELEASED, 3)  # before TF32 is allowed, which the plain stage obeys
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    check(speak(unrecorded(), range(3)), exact, FLOAT16_DB)
    assert torch.backends.cuda.matmul.allow_tf32 and torch.backends.cudnn.allow_tf32


def test_slots_are_returned() -> None:
    stage = graphs()
    states = [stage.open(seed) for seed in range(SESSIONS)]
    with pytest.raises(BusyError):
        stage.open(0)
    for _ in range(2):
        for state in states:
            state.close()
    again = [stage.open(seed) for seed in range(SESSIONS)]
    assert len({state.slot for state in again}) == SESSIONS
    for state in again:
        state.close()


def test_the_configuration_chooses_it() -> None:
    assert isinstance(make_vocoder(config(ODD, kernels="graphs"), ODD), GraphVocoderStage)
    assert isinstance(make_vocoder(config(ODD, kernels="auto"), ODD), GraphVocoderStage)
    assert not isinstance(make_vocoder(config(ODD, kernels="plain"), ODD), GraphVocoderStage)
