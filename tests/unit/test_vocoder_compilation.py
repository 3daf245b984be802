"""The kernels of CosyVoice2's vocoder compile for every generation of GPU, at full size, within the shared memory that it has.

On a machine without a GPU: ``kernel_compiler`` says how.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bistream.config import RuntimeConfig
from bistream.mel2wav import stage as vocoder_stage
from bistream.mel2wav.hift import HiFT
from bistream.mel2wav.hop_plan import BUCKETS, Bucket
from scripts.make_checkpoint import FULL

pytest.importorskip("triton", reason="the compiler alone is enough: see kernel_compiler")

from bistream.gpu.compile_ahead import compile_all, wanted_by
from bistream.mel2wav.cuda import runner
from bistream.mel2wav.cuda.runner import CudaVocoderStage
from tests.unit.kernel_compiler import SHARED_KIB, names_that_compile_and_fit, simulate

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("capability", SHARED_KIB)
def test_they_compile_and_fit(capability: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    simulate(capability, monkeypatch, tmp_path)
    launch = launches(monkeypatch, min(BUCKETS, key=size_of), max(BUCKETS, key=size_of))
    assert len(names_that_compile_and_fit(launch, capability)) == 10


def test_worker_processes_compile_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    simulate(90, monkeypatch, tmp_path)
    wanted = wanted_by(launches(monkeypatch, min(BUCKETS, key=size_of)))
    assert not compile_all(wanted, ["cuda", "90", "32"], workers=1)


def launches(monkeypatch: pytest.MonkeyPatch, *buckets: Bucket) -> Callable[[], None]:
    monkeypatch.setattr(vocoder_stage, "load_hift", lambda model_dir, sizes, device: HiFT(sizes).eval().requires_grad_(False))
    monkeypatch.setattr(runner, "BUCKETS", buckets)
    return CudaVocoderStage(RuntimeConfig(device="cpu", max_sessions=8), FULL.checkpoint)._launch_all


def size_of(bucket: Bucket) -> int:
    return bucket.rows * bucket.frames
