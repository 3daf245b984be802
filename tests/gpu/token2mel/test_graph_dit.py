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
from bistream.token2mel.graphs.attention import attend_flex, attend_gathered, kernel_options
from bistream.token2mel.graphs.batch import BatchSize
from bistream.token2mel.graphs.dit_operations import compiled_operations
from bistream.token2mel.graphs.dit_runner import DitGraphRunner
from bistream.token2mel.graphs.operations import compile_per_size
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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_attention_over_keys_and_values_of_each_head(dtype: torch.dtype) -> None:
    """Slots in any order, partly filled ones, a tile that sees nothing; slots that no tile sees are full of NaN."""
    heads, width, rows, count, tiles = 16, 64, 64, 40, 6
    generator = torch.Generator(device="cuda").manual_seed(0)
    query = torch.randn(tiles, rows, heads * width, device="cuda", generator=generator).to(dtype)
    keys, values = (torch.full((count, rows, heads * width), float("nan"), device="cuda", dtype=dtype) for _ in range(2))
    seen = torch.tensor([1, 5, 12, 3, 7, 0], dtype=torch.int32, device="cuda")
    order = torch.randperm(30, device="cuda", generator=generator)
    lists = torch.stack([order.roll(tile)[:12] for tile in range(tiles)]).int()
    live = torch.full((count,), 50, dtype=torch.int32, device="cuda")
    live[order[:4]] = 7
    for store in (keys, values):
        store[:30] = torch.randn(30, rows, heads * width, device="cuda", generator=generator).to(dtype)
    shared_memory = getattr(torch.cuda.get_device_properties(0), "shared_memory_per_block_optin")  # noqa: B009
    options = kernel_options(width, dtype.itemsize, shared_memory)
    found = compile_per_size(attend_flex)(query, keys, values, seen, lists, live, heads, 0.125, options=options)
    exact = attend_gathered(query.float(), keys.float(), values.float(), seen, lists, live, heads, 0.125)
    assert snr_db(found.float(), exact) > 45.0
    assert not found[-1].any()


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


def test_keys_are_written_where_they_stand() -> None:
    """And not to a copy of the workspace, all of which would be moved twice for each block."""
    device, width, batch = torch.device("cuda"), 1024, 12
    place_keys = compiled_operations(device, torch.float16, 64).place_keys
    keys, values = torch.zeros(2, 1024, 64, width, device=device, dtype=torch.float16).unbind(0)
    projected, slot = torch.randn(batch, 50, 2 * width, device=device, dtype=torch.float16), torch.arange(batch, device=device)
    turns = torch.zeros(batch, 50, 32, device=device)
    place_keys(projected, turns.cos(), turns.sin(), slot, keys, values)
    taken = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    place_keys(projected, turns.cos(), turns.sin(), slot, keys, values)
    assert torch.cuda.max_memory_allocated() - taken < keys.nbytes / 10
    assert torch.equal(keys[:batch, :50], projected[..., :width]) and torch.equal(values[:batch, :50], projected[..., width:])
    assert not keys[:, 50:].any() and not keys[batch:].any()
