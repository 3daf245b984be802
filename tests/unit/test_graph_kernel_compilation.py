"""The kernels of the language model and of CosyVoice3 compile for every generation of GPU, within the shared memory that it has.

On a machine without a GPU: ``kernel_compiler`` says how.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bistream.token2mel.dit.estimator import CONV_HISTORY_FRAMES, CONV_KERNEL
from bistream.token2mel.sizes import DIT_CONV_GROUPS
from bistream.token2mel.state_rows import StateRows
from scripts.make_checkpoint import FULL3
from tests.unit.text2token.tiny import CONFIG, random_state

pytest.importorskip("triton", reason="the compiler alone is enough: see kernel_compiler")

from bistream.checkpoints.config import LanguageModelConfig
from bistream.mel2wav.causal.graphs.cuda.layer_memory import KernelLayerMemory
from bistream.text2token.engine_settings import EngineSettings
from bistream.text2token.graphs.batch import NUM_FIELDS
from bistream.text2token.graphs.runner import BLOCK_SIZE
from bistream.text2token.graphs.step import GraphStep
from bistream.text2token.graphs.tuning import Gpu, Tuning
from bistream.text2token.graphs.weights import fold_weights
from bistream.text2token.weights import build_weights
from bistream.token2mel.dit.graphs.cuda import launches as dit_launches
from bistream.token2mel.dit.graphs.operations import PackedConv
from bistream.token2mel.dit.graphs.tiles import StoredSlots, Tiles, turns
from tests.unit.kernel_compiler import CPU, SHARED_KIB, names_that_compile_and_fit, simulate

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("capability", SHARED_KIB)
def test_they_compile_and_fit(capability: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    simulate(capability, monkeypatch, tmp_path)
    assert names_that_compile_and_fit(lambda: launch_all(dtype), capability) == {
        "advance_rows", "attend_slots", "convolve_tiles", "extend_rows", "project_pages",
    }  # fmt: skip


@pytest.mark.parametrize("sizes", ["released", "tiny"])
@pytest.mark.parametrize("capability", SHARED_KIB)
def test_the_language_model_compiles_and_fits(capability: int, sizes: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    simulate(capability, monkeypatch, tmp_path)
    gpu = Gpu(SHARED_KIB[capability] * 1024, capability >= 90, capability == 100)
    monkeypatch.setattr(Gpu, "of", lambda device: gpu)
    config = replace(CONFIG if sizes == "tiny" else LanguageModelConfig(), num_hidden_layers=2)
    names = names_that_compile_and_fit(lambda: launch_steps(config, torch.bfloat16), capability)
    assert names >= {"begin_rows", "qkv", "attend_rows", "add_product", "gate_up", "head", "sample_rows"}
    assert names >= {"begin_and_note", "attend_and_read"}


def launch_steps(config: LanguageModelConfig, dtype: torch.dtype) -> None:
    """Steps of every kind of tile."""
    weights = fold_weights(build_weights(random_state(config), config, CPU, torch.float32), config, CPU, dtype)
    settings = EngineSettings(max_sessions=256, max_rows=256, kv_cache_tokens=256, block_size=BLOCK_SIZE, max_sequence_ids=1024)
    for head in (None, (1, 1)):
        kernels = GraphStep(config, weights, settings, Tuning(), head).kernels
        for rows in (1, 32, 64, 128, 256):
            fields = torch.zeros((rows, NUM_FIELDS), dtype=torch.int32)
            kernels.scores(fields)
            kernels.sample(fields)


def launch_all(dtype: torch.dtype) -> None:
    """Every kernel once, on tensors of the released sizes."""
    flow: Any = FULL3.checkpoint.flow
    dim, heads, tiles, stored, frames = flow.dit.dim, flow.dit.heads, 4, 8, flow.dit.static_chunk_size

    def numbers(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=dtype)

    def integers(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int32)

    rows, places = tiles * frames, torch.arange(tiles)
    of_tiles = {name: integers(tiles) for name in ("begin", "live", "start", "follows", "visible")}
    cut = Tiles(frames, last=places, page=places, line=torch.arange(rows), lists=integers(tiles, 8), **of_tiles)
    slots = StoredSlots(torch.arange(stored), integers(1), integers(stored))
    table = turns(1000, dim // heads, CPU)
    width = dim // DIT_CONV_GROUPS
    conv = PackedConv(numbers(DIT_CONV_GROUPS, CONV_KERNEL, width, width), numbers(dim))
    vectors = dict(zip(("gate", "shift", "scale"), torch.zeros(3, dim), strict=True))
    x = numbers(rows, dim)
    tails = StateRows.empty((stored, CONV_HISTORY_FRAMES, 2 * DIT_CONV_GROUPS, width), dtype, CPU)
    dit_launches.convolve(x, tails[:, :, DIT_CONV_GROUPS:], cut, conv)
    dit_launches.advance(x.float(), x, **vectors)
    dit_launches.advance(x.float(), x, **vectors, pages=StateRows.empty((stored, frames, dim), dtype, CPU), line=cut.line)
    pages = StateRows.empty((2, stored, frames, dim), dtype, CPU)
    context = dit_launches.project_context(pages, slots, StateRows.of(numbers(2, 2 * dim, dim)), numbers(2, 2 * dim), table)
    dit_launches.attend(numbers(rows, 3 * dim), context[0], table, cut, heads, 0.125)
    memory = KernelLayerMemory(numbers(2, 6 * 512), torch.ones(2, dtype=torch.int64))
    memory.extend(numbers(2, 50, 512), history=6)
