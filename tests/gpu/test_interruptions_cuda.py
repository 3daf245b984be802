"""Batches of our kernels that stop between solver steps: graphs by step give what whole graphs give, in any turns.

All buckets share the buffers, so every switch between two batches copies the state of one and puts back that of the other.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0):
    pytest.skip("needs a GPU of compute capability 8.0", allow_module_level=True)

from bistream.token2mel.cuda.batch import Bucket
from bistream.token2mel.cuda.runner import CudaFlowRunner
from tests.gpu import test_token2wav_cuda as cuda
from tests.gpu.interruptions import Speakers, in_turns
from tests.unet import network_of, pages_of

# the GPU host's torch and triton are not the pinned versions: ignore their warnings
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

EQUAL: Callable[[torch.Tensor, torch.Tensor], float] = cuda.snr_db


def speakers() -> list[Speakers]:
    """Few and many rows, so that buckets differ where there are several; both batches overlap their prompts."""
    return [
        Speakers([cuda.prompt(75, 1), cuda.prompt(28, 4)], [(18, 40), (25, 13), (7, 30)], seed=1),
        Speakers([cuda.prompt(0, 2)], [(18,), (25,), (3,)], seed=2),
        Speakers([cuda.prompt(131, 3), cuda.prompt(10, 5), cuda.prompt(60, 6)], [(20, 18, 33), (25, 25, 25), (4, 9, 0)], seed=3),
    ]


@pytest.mark.parametrize("kind", cuda.KINDS)
@pytest.mark.parametrize("steps", [(1,), (2, 1), (1, 3, 2), (1, 1000)], ids=str)
def test_batches_in_turns_are_the_batches_alone(kind: str, steps: tuple[int, ...]) -> None:
    expected = in_turns(cuda.cuda_stage(kind), speakers(), (1000,))
    found = in_turns(cuda.cuda_stage(kind), speakers(), steps)
    for mels, exact in zip(found, expected, strict=True):
        for mel, other in zip(mels, exact, strict=True):
            assert EQUAL(mel, other) > cuda.REPEAT_DB[kind]


def test_buckets_of_different_kernels_take_turns() -> None:
    """As in the server: few rows interrupt many, and the reverse."""
    stage = cuda.plain_stage()
    buckets = (Bucket(64, 4), Bucket(1664, 64))
    runner = CudaFlowRunner(network_of(stage), pages_of(stage), stage.left_context_chunks, buckets)
    runner.record()
    stage.runner = runner
    many = [Speakers([cuda.prompt(20 + row, row) for row in range(12)], [(25,) * 12, (30,) * 12], seed=4)]
    few = [Speakers([cuda.prompt(5, 50)], [(18,), (25,), (25,), (6,)], seed=5)]
    found = in_turns(stage, [*many, *few], (1, 2))
    exact_stage = cuda.plain_stage(dtype="float32")
    again = [Speakers(one.voices, one.counts, one.seed) for one in (*many, *few)]
    for mels, exact in zip(found, in_turns(exact_stage, again, (1000,)), strict=True):
        for mel, other in zip(mels, exact, strict=True):
            assert EQUAL(mel, other) > cuda.FLOAT16_DB


def test_recording_by_step_on_first_use_changes_nothing() -> None:
    """A runner that records a bucket with its first batch: recording computes the steps, which begin again."""
    recorded = cuda.cuda_stage("many")
    late = cuda.plain_stage()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bistream.token2mel.cuda.runner.tuning_of", lambda bucket: cuda.TUNINGS["many"])
        late.runner = CudaFlowRunner(network_of(late), pages_of(late), 0, cuda.BUCKETS["many"])
    for found, exact in zip(in_turns(late, speakers(), (1,)), in_turns(recorded, speakers(), (1,)), strict=True):
        for mel, other in zip(found, exact, strict=True):
            assert EQUAL(mel, other) > cuda.REPEAT_DB["many"]
