"""CosyVoice3's flow in recorded graphs of library code, on any CUDA GPU: close to the plain network in any batch, failures isolated.

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

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from bistream.checkpoint_config import CheckpointConfig, DitConfig, DitFlowConfig
from bistream.config import RuntimeConfig
from bistream.errors import EngineError
from bistream.token2mel.dit.network import DitFlow
from bistream.token2mel.dit.pages import DitPages
from bistream.token2mel.graphs.batch import BatchSize
from bistream.token2mel.graphs.cuda import dit_kernels
from bistream.token2mel.graphs.dit_attention import Slots, attend_projected, project_context, turns
from bistream.token2mel.graphs.dit_operations import PackedConv, advance, convolve, linear_gelu, linear_gelu_in_one
from bistream.token2mel.graphs.dit_runner import DitGraphRunner
from bistream.token2mel.stage import FlowHop, FlowStage
from tests.gpu.token2mel.test_graph_runner import FLOAT16_DB, HOPS, REPEAT_DB, VOICES, snr_db, speak, tokens
from tests.unit.token2mel.random_weights import random_state

# the GPU host's torch and triton are not the pinned versions: ignore their warnings
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

FLOW = DitFlowConfig(dit=DitConfig(depth=3), n_timesteps=3)  # real widths; fewer blocks and solver steps
SIZES = (BatchSize(2, 8), BatchSize(16, 64))


@cache
def model_dir() -> str:
    directory = tempfile.mkdtemp(prefix="bistream-gpu-")
    torch.save(random_state(FLOW), Path(directory) / "flow.pt")
    return directory


def plain_stage(**changes: object) -> FlowStage:
    base = RuntimeConfig(model_dir=model_dir(), device="cuda", flow_state_mb=2000, max_sessions=32, kernels="plain")
    return FlowStage(dataclasses.replace(base, **changes), CheckpointConfig(flow=FLOW))  # type: ignore[arg-type]


def graph_stage(record: bool = True, interruptible: bool = False, **changes: object) -> FlowStage:
    """A stage with these batch sizes only, since each takes seconds to record."""
    stage = plain_stage(**changes)
    assert isinstance(stage.runner.network, DitFlow) and isinstance(stage.pages, DitPages)
    stage.runner = DitGraphRunner(stage.runner.network, stage.pages, stage.left_context_chunks, SIZES, interruptible=interruptible)
    if record:
        stage.runner.record()
    return stage


@cache
def exact_mels(left_context_chunks: int = 0) -> Sequence[torch.Tensor]:
    return speak(plain_stage(dtype="float32", left_context_chunks=left_context_chunks), VOICES, HOPS)


@cache
def recorded_stage() -> FlowStage:
    return graph_stage()


STORED, TILES, HEADS, HEAD_SIZE, BLOCKS = 16, 6, 16, 64, 2


def slots(frames: int, used: int) -> Slots:
    """Slots in any order, partly filled tiles, one that sees nothing; a half of 3 tiles with ``STORED`` places for stored pages."""
    generator = torch.Generator().manual_seed(frames)
    count, of_half = 2 * STORED + TILES, TILES // 2
    live = torch.full((count,), frames)
    live[2 * STORED + 1 :: 2] = 7
    lists = torch.zeros(TILES, 13)
    for tile in range(TILES):
        half = tile // of_half
        stored = half * STORED + torch.randperm(used, generator=generator)[:10]
        own = 2 * STORED + torch.arange(half * of_half, tile + 1)
        lists[tile, : len(stored) + len(own)] = torch.cat([stored, own])[torch.randperm(len(stored) + len(own), generator=generator)]
    return Slots(
        page=torch.cat([torch.randperm(40, generator=generator)[:STORED] + 40 * half for half in range(2)]).cuda(),
        used=torch.tensor([used], dtype=torch.int32, device="cuda"),
        start=torch.randint(0, 3000, (count,), generator=generator).int().cuda(),
        live=live.int().cuda(),
        visible=torch.tensor([1, 5, 11, 3, 7, 0], dtype=torch.int32, device="cuda"),
        lists=lists.int().cuda(),
    )


def random(*shape: int, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(*shape, device="cuda", generator=torch.Generator(device="cuda").manual_seed(len(shape)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("frames", [50, 80])
def test_attention_over_projected_slots(dtype: torch.dtype, frames: int) -> None:
    """``turn_tiles`` and ``attend_slots``; stored slots that no tile sees are NaN."""
    width, seen = HEADS * HEAD_SIZE, slots(frames, used=13)
    own, context = random(TILES, frames, 3 * width).to(dtype), random(2 * STORED, frames, 2 * width).to(dtype)
    table = turns(3000 + frames, HEAD_SIZE, own.device)
    exact = attend_projected(own.float(), context.float(), table, seen, HEADS, 0.125)
    context.view(2, STORED, -1)[:, 13:] = float("nan")
    found = dit_kernels.attend(own, context, table, seen, HEADS, 0.125)
    assert snr_db(found.float(), exact) > 45.0
    assert not found[-1].any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("frames, dim, width", [(50, 1024, 1024), (80, 96, 48)])
@pytest.mark.parametrize("used", [0, 1, 13, 16])
def test_keys_and_values_of_stored_pages(dtype: torch.dtype, frames: int, dim: int, width: int, used: int) -> None:
    """``project_pages``; pages that the batch does not read are NaN."""
    seen, table = slots(frames, max(used, 1)), turns(3000 + frames, HEAD_SIZE if width > HEAD_SIZE else 16, torch.device("cuda"))
    seen.used.fill_(used)
    read = torch.cat([seen.page[:used], seen.page[STORED : STORED + used]])
    pages = torch.full((BLOCKS, 80, frames, dim), float("nan"), device="cuda")
    pages[:, read] = random(BLOCKS, 2 * used, frames, dim)
    everything = random(BLOCKS, 3 * width, dim, scale=dim**-0.5).to(dtype)
    weight, bias = everything[:, width:], random(BLOCKS, 2 * width).to(dtype)
    found = dit_kernels.project_context(pages.to(dtype), seen, weight, bias, table)
    exact = project_context(pages.to(dtype).float(), seen, weight.float(), bias.float(), table)
    for half in range(2):
        rows = slice(half * STORED, half * STORED + used)
        assert torch.isfinite(found[:, rows]).all()
        assert not used or snr_db(found[:, rows].float(), exact[:, rows]) > 45.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("frames, dim", [(50, 1024), (80, 256)])
def test_position_convolutions(dtype: torch.dtype, frames: int, dim: int) -> None:
    """``convolve_tiles``; what they keep goes to the second half of the stored frames' channels."""
    width = dim // 16
    conv = PackedConv(random(16, 31, width, width, scale=(31 * width) ** -0.5).to(dtype), random(dim).to(dtype))
    exact_conv = PackedConv(conv.weight.float(), conv.bias.float())
    x, stored = random(TILES, frames, dim).to(dtype), random(12, 30, 2 * dim).to(dtype)
    exact_stored, before = stored.float(), stored.clone()
    previous, last, page = (
        torch.tensor(numbers, device="cuda") for numbers in ([-1, 0, 1, -1, 3, -1], [7, 0, 0, 4, 0, 6], [3, 8, 1, 0, 5, 2])
    )
    exact = convolve(x.float(), exact_stored[..., dim:], previous, last, page, exact_conv)
    found = dit_kernels.convolve(x, stored[..., dim:], previous, last, page, conv)
    assert snr_db(found.float(), exact) > 45.0
    assert torch.equal(stored[..., dim:].float(), exact_stored[..., dim:]) and torch.equal(stored[..., :dim], before[..., :dim])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dim", [1024, 320])
def test_the_residual_stream_advances(dtype: torch.dtype, dim: int) -> None:
    """``advance_rows``; the norm is also in the tile's page, and in no other."""
    x, delta, vectors = (
        random(TILES, 50, dim, scale=300.0),
        random(TILES, 50, dim).to(dtype),
        dict(zip(("gate", "shift", "scale"), random(3, dim), strict=True)),
    )
    pages, page = torch.zeros(9, 50, dim, device="cuda", dtype=dtype), torch.tensor([3, 8, 1, 0, 5, 2], device="cuda")
    exact, exact_norm = advance(x, delta.float(), **vectors)
    for places in ({}, {"pages": pages, "page": page}):
        stream, normed = dit_kernels.advance(x, delta, **vectors, **places)
        assert torch.allclose(stream, exact, rtol=1e-6, atol=1e-4) and snr_db(normed.float(), exact_norm) > 45.0
    assert torch.equal(pages[page], normed) and not pages[[4, 6, 7]].any()


def test_a_product_that_ends_with_gelu() -> None:
    x, weight, bias = random(4, 50, 1024).half(), random(2048, 1024, scale=0.03).half(), random(2048).half()
    exact = linear_gelu(x.float(), weight.float(), bias.float())
    assert snr_db(linear_gelu_in_one(x, weight, bias).float(), exact) > 55.0


def test_the_configuration_chooses_the_runner() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bistream.token2mel.graphs.dit_runner.TILES", (2, 16))
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


def test_graphs_by_step_are_close_to_the_plain_network() -> None:
    for found, exact in zip(speak(graph_stage(interruptible=True), VOICES, HOPS), exact_mels(), strict=True):
        assert snr_db(found, exact) > FLOAT16_DB


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
