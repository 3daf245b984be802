"""The whole vocoder for networks of other sizes than the released one: close to float32.

Tolerances are signal to error in dB; in 16 bit the plain network itself is some 55 dB from float32.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from bistream.checkpoints.config import CheckpointConfig, VocoderConfig
from bistream.config import RuntimeConfig
from bistream.gpu.precision import exact_float32
from bistream.mel2wav.sizes import graphs_need
from bistream.mel2wav.stage import VocoderHop, VocoderStage
from bistream.types import FloatArray
from tests.gpu.checks import DEVICE, INTERPRETED
from tests.unit.mel2wav.tiny import random_state, voiced_mel

pytest.importorskip("triton")
if not (INTERPRETED or torch.cuda.is_available()):
    pytest.skip("needs a CUDA GPU, or Triton's interpreter", allow_module_level=True)

from bistream.mel2wav.cuda.runner import CudaVocoderStage

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

SIZES = {
    "widths of no power of two": VocoderConfig(base_channels=96, f0_channels=48),
    "blocks of unequal depth": VocoderConfig(
        base_channels=64, f0_channels=64, resblock_kernel_sizes=(3, 5), resblock_dilation_sizes=((1, 2), (2,))
    ),
    "far reach": VocoderConfig(
        base_channels=64, f0_channels=64, resblock_kernel_sizes=(11,), resblock_dilation_sizes=((9,),),
        source_resblock_kernel_sizes=(3, 3, 3), source_resblock_dilation_sizes=((1,), (7,), (2,)),
    ),
    "longer Fourier transforms": VocoderConfig(
        base_channels=64, f0_channels=64, istft_n_fft=64, resblock_kernel_sizes=(3,), resblock_dilation_sizes=((1,),)
    ),
    "one block": VocoderConfig(base_channels=192, f0_channels=80, resblock_kernel_sizes=(7,), resblock_dilation_sizes=((1, 3),)),
}  # fmt: skip
HOPS = ((1, 2),) if INTERPRETED else ((30, 12), (50, 20))  # new frames of two sessions


def audio(stage: VocoderStage | CudaVocoderStage) -> list[FloatArray]:
    mels = [voiced_mel(sum(hops), seed) for seed, hops in enumerate(zip(*HOPS, strict=True))]
    states, begins = [stage.open(seed) for seed in range(2)], [0, 0]
    pieces: list[list[FloatArray]] = [[], []]
    for number, hops in enumerate(HOPS):
        is_last = number == len(HOPS) - 1
        made = [
            VocoderHop(state, mel[:, begin : begin + new], is_last)
            for state, mel, begin, new in zip(states, mels, begins, hops, strict=True)
        ]
        begins = [begin + new for begin, new in zip(begins, hops, strict=True)]
        for parts, piece in zip(pieces, stage.hop(made), strict=True):
            parts.append(piece)
    return [np.concatenate(parts) for parts in pieces]


@pytest.mark.parametrize("name", SIZES)
def test_other_sizes_are_close_to_float32(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert graphs_need(SIZES[name]) == ()
    checkpoint = CheckpointConfig(vocoder=SIZES[name])
    with tempfile.TemporaryDirectory() as directory, exact_float32():
        torch.save(random_state(SIZES[name]), Path(directory) / "hift.pt")
        config = RuntimeConfig(model_dir=directory, device=str(DEVICE), max_sessions=4, kernels="plain")
        found = audio(CudaVocoderStage(config, checkpoint, record=False))
        exact = audio(VocoderStage(config, checkpoint))
    for one, other in zip(found, exact, strict=True):
        error = np.square(one.astype(np.float64) - other).sum()
        assert 10 * np.log10(np.square(other.astype(np.float64)).sum() / max(error, 1e-30)) > 40.0
