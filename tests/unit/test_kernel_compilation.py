"""Every kernel of the tier ``kernels`` compiles for a Hopper GPU, at full size, on a machine without one: the compiler needs none.

    pip install --no-deps --target build/triton_compiler triton==3.6.0
    PYTHONPATH=build/triton_compiler .venv/bin/python -m pytest tests/unit/test_kernel_compilation.py -m slow -o log_cli_level=INFO

The launches are the product's own, on CPU tensors; streams and the driver are stand-ins. With another Triton it fails, and says where: then
``bistream/gpu/tier.py`` must not choose this tier. What it logs are the seconds of one core for each stage.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bistream.config import RuntimeConfig
from bistream.gpu.tier import KERNELS_TRITON
from bistream.mel2wav import stage as vocoder_stage
from bistream.mel2wav.hift import HiFT
from bistream.token2mel import weights as flow_weights
from bistream.token2mel.pages import FlowPages
from scripts.make_checkpoint import FULL

triton = pytest.importorskip("triton", reason="the compiler alone is enough: see the module")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.runtime import driver  # noqa: E402

from bistream.gpu.compile_ahead import compile_all, wanted_by  # noqa: E402
from bistream.mel2wav.cuda.runner import CudaVocoderStage  # noqa: E402
from bistream.token2mel.cuda.runner import CudaFlowRunner  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

logger = logging.getLogger(__name__)
CPU = torch.device("cpu")
CHECKPOINT = FULL.checkpoint


class Nothing:
    """A stream, an event, or a device without time."""

    multi_processor_count, shared_memory_per_block_optin, major = 132, 227 * 1024, 9  # of an H100 and an H200

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, *error: object) -> None: ...

    def wait_stream(self, other: object) -> None: ...

    def synchronize(self) -> None: ...


class Hopper:
    """As much of Triton's driver as a launch asks for before it compiles."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self) -> torch.device:
        return CPU


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for name in ("Stream", "Event", "current_stream", "get_device_properties"):
        monkeypatch.setattr(torch.cuda, name, lambda *arguments, **options: Nothing())
    for name in ("stream", "device"):
        monkeypatch.setattr(torch.cuda, name, lambda *arguments: contextlib.nullcontext())
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *sizes, pin_memory=False, **options: zeros(*sizes, **options))
    driver.set_active(Hopper())


def zeros(shapes: dict[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    return {key: torch.zeros(shape) for key, shape in shapes.items()}


def flow(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    sizes: Any = CHECKPOINT.flow
    network = flow_weights.build_network(zeros(flow_weights.expected_shapes(sizes)), sizes, CPU, torch.float16)
    return CudaFlowRunner(network, FlowPages(sizes, 20, torch.float16, CPU), 0, interruptible=True)._launch_all


def vocoder(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    monkeypatch.setattr(vocoder_stage, "load_hift", lambda model_dir, sizes, device: HiFT(sizes).eval().requires_grad_(False))
    return CudaVocoderStage(RuntimeConfig(device="cpu", max_sessions=8), CHECKPOINT)._launch_all


@pytest.mark.parametrize("stage", [flow, vocoder])
def test_every_kernel_compiles_for_hopper(
    stage: Callable[[pytest.MonkeyPatch], Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert triton.__version__.split(".")[:2] == KERNELS_TRITON.split("."), "the version that the tier asks for"
    wanted = wanted_by(stage(monkeypatch))
    assert len(wanted) >= 30
    began = time.monotonic()
    failures = compile_all(wanted, ["cuda", "90", "32"], workers=1)
    logger.info("%s: %d kernels compiled by one process in %.1f s", stage.__name__, len(wanted), time.monotonic() - began)
    assert not failures, failures[0]
    began = time.monotonic()
    assert not compile_all(wanted, ["cuda", "90", "32"], workers=1)
    logger.info("%s: found in the cache in %.1f s", stage.__name__, time.monotonic() - began)
