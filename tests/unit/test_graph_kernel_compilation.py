"""The kernels of the tier ``graphs`` compile for every generation of GPU, at full size, within the shared memory that it has.

As ``test_kernel_compilation``, on a machine without a GPU:

    pip install --no-deps --target build/triton_compiler triton==3.6.0
    PYTHONPATH=build/triton_compiler .venv/bin/python -m pytest tests/unit/test_graph_kernel_compilation.py -m slow
"""

from __future__ import annotations

import importlib
import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from bistream.token2mel.dit.estimator import CONV_HISTORY_FRAMES, CONV_KERNEL
from bistream.token2mel.sizes import DIT_CONV_GROUPS
from bistream.token2mel.state_rows import StateRows
from scripts.make_checkpoint import FULL3
from tests.unit.text2token.tiny import CONFIG, random_state

pytest.importorskip("triton", reason="the compiler alone is enough: see the module")

from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from bistream.checkpoints.config import LanguageModelConfig
from bistream.gpu.compile_ahead import Wanted, wanted_by
from bistream.gpu.compile_worker import Target
from bistream.mel2wav.graphs.cuda.layer_memory import KernelLayerMemory
from bistream.text2token.engine_settings import EngineSettings
from bistream.text2token.graphs.batch import NUM_FIELDS
from bistream.text2token.graphs.cuda import launches
from bistream.text2token.graphs.runner import BLOCK_SIZE
from bistream.text2token.graphs.step import GraphStep
from bistream.text2token.graphs.tuning import Gpu, Tuning
from bistream.text2token.graphs.weights import fold_weights
from bistream.text2token.weights import build_weights
from bistream.token2mel.graphs.cuda import dit_kernels
from bistream.token2mel.graphs.dit_attention import Slots, turns
from bistream.token2mel.graphs.dit_operations import PackedConv

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CPU = torch.device("cpu")
# shared memory of a block, KiB, by compute capability (CUDA C++ Programming Guide, technical specifications per compute capability)
SHARED_KIB = {75: 64, 80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}


class AnyGpu(Target):
    """As much of Triton's driver as a launch asks for before it compiles. Each has a number of its own, by which Triton keeps kernels."""

    numbers = itertools.count()

    def __init__(self, capability: int) -> None:
        super().__init__(GPUTarget("cuda", capability, 32))
        self._number = next(self.numbers)

    def get_current_device(self) -> int:
        return self._number

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return CPU


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("capability", SHARED_KIB)
def test_they_compile_and_fit(capability: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if capability == 75 and dtype is torch.bfloat16:
        pytest.skip("has none: float16 is chosen there")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=40))
    driver.set_active(AnyGpu(capability))
    wanted = wanted_by(lambda: launch_all(dtype))
    assert {one.name for one in wanted} == {
        "advance_rows", "attend_slots", "convolve_tiles", "extend_rows", "project_pages", "turn_tiles",
    }  # fmt: skip
    for one in wanted:
        assert compiled(one).metadata.shared <= SHARED_KIB[capability] * 1024, one.name


@pytest.mark.parametrize("sizes", ["released", "tiny"])
@pytest.mark.parametrize("capability", [capability for capability in SHARED_KIB if capability >= 80])
def test_the_language_model_compiles_and_fits(capability: int, sizes: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    gpu = Gpu(SHARED_KIB[capability] * 1024, capability >= 90, capability == 100)
    monkeypatch.setattr(Gpu, "of", lambda device: gpu)
    driver.set_active(AnyGpu(capability))
    config = replace(CONFIG if sizes == "tiny" else LanguageModelConfig(), num_hidden_layers=2)
    wanted = wanted_by(lambda: launch_steps(config, torch.bfloat16))
    assert {one.name for one in wanted} >= {"begin_rows", "qkv", "attend_rows", "add_product", "gate_up", "head", "sample_rows"}
    for one in wanted:
        assert compiled(one).metadata.shared <= SHARED_KIB[capability] * 1024, one.name


def launch_steps(config: LanguageModelConfig, dtype: torch.dtype) -> None:
    """Steps of every kind of tile."""
    weights = fold_weights(build_weights(random_state(config), config, CPU, torch.float32), config, CPU, dtype)
    settings = EngineSettings(max_sessions=256, max_rows=256, kv_cache_tokens=256, block_size=BLOCK_SIZE, max_sequence_ids=1024)
    step = GraphStep(config, weights, settings, Tuning())
    kernels = launches.StepKernels(config, weights, step.cache, step.table, step.state, settings.max_rows, Tuning())
    for rows in (1, 32, 64, 128, 256):
        fields = torch.zeros((rows, NUM_FIELDS), dtype=torch.int32)
        kernels.scores(fields)
        kernels.sample(fields)


def compiled(one: Wanted) -> Any:
    return getattr(importlib.import_module(one.module), one.name).preload(one.description)


def launch_all(dtype: torch.dtype) -> None:
    """Every kernel once, on tensors of the released sizes."""
    flow: Any = FULL3.checkpoint.flow
    dim, heads, tiles, stored, frames = flow.dit.dim, flow.dit.heads, 4, 8, flow.dit.static_chunk_size

    def numbers(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=dtype)

    def integers(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int32)

    places = torch.arange(tiles)
    slots = Slots(
        torch.arange(stored), integers(1), integers(stored + tiles), integers(stored + tiles), integers(tiles), integers(tiles, 8)
    )  # fmt: skip
    table = turns(1000, dim // heads, CPU)
    width = dim // DIT_CONV_GROUPS
    conv = PackedConv(numbers(DIT_CONV_GROUPS, CONV_KERNEL, width, width), numbers(dim))
    vectors = dict(zip(("gate", "shift", "scale"), torch.zeros(3, dim), strict=True))
    x = numbers(tiles, frames, dim)
    tails = StateRows.empty((stored, CONV_HISTORY_FRAMES, 2 * DIT_CONV_GROUPS, width), dtype, CPU)
    dit_kernels.convolve(x, tails[:, :, DIT_CONV_GROUPS:], places, places, places, conv)
    dit_kernels.advance(x.float(), x, **vectors)
    dit_kernels.advance(x.float(), x, **vectors, pages=StateRows.empty((stored, frames, dim), dtype, CPU), page=places)
    pages = StateRows.empty((2, stored, frames, dim), dtype, CPU)
    context = dit_kernels.project_context(pages, slots, numbers(2, 2 * dim, dim), numbers(2, 2 * dim), table)
    dit_kernels.attend(numbers(tiles, frames, 3 * dim), context[0], table, slots, heads, 0.125)
    memory = KernelLayerMemory(numbers(2, 6 * 512), torch.ones(2, dtype=torch.int64))
    memory.extend(numbers(2, 50, 512), history=6)
