"""The flow in recorded graphs of library code, on any CUDA GPU: close to the plain network in any batch, failures isolated.

Tolerances are signal to error in dB. In float16 the plain network itself is 59 dB from float32 at full size.
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
from torch import Tensor

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from bistream.checkpoints.config import CheckpointConfig, EstimatorConfig, FlowConfig, FlowEncoderConfig
from bistream.config import RuntimeConfig
from bistream.errors import EngineError
from bistream.token2mel.graphs.attention import attend_flex, kernel_options
from bistream.token2mel.graphs.gathered_attention import attend_gathered
from bistream.token2mel.graphs.operations import compile_per_size
from bistream.token2mel.graphs.runner import GraphFlowRunner
from bistream.token2mel.stage import FlowHop, FlowStage
from bistream.types import VoicePrompt
from tests.unet import network_of, pages_of
from tests.unit.token2mel.random_weights import random_state

# the GPU host's torch and triton are not the pinned versions: ignore their warnings
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

# Real widths; fewer layers and solver steps.
FLOW = FlowConfig(
    encoder=FlowEncoderConfig(num_blocks=2, num_up_blocks=1), estimator=EstimatorConfig(n_blocks=2, num_mid_blocks=2), n_timesteps=3
)
FLOAT16_DB = 40.0
REPEAT_DB = 80.0  # the same kernels twice; the library may choose different ones for matrix products while recording
TILES = (2, 16)


@cache
def model_dir() -> str:
    directory = tempfile.mkdtemp(prefix="bistream-gpu-")
    torch.save(random_state(FLOW), Path(directory) / "flow.pt")
    return directory


def plain_stage(**changes: object) -> FlowStage:
    base = RuntimeConfig(model_dir=model_dir(), device="cuda", flow_state_mb=2000, max_sessions=32, kernels="plain")
    return FlowStage(dataclasses.replace(base, **changes), CheckpointConfig(flow=FLOW))  # type: ignore[arg-type]


def graph_stage(tiles: Sequence[int] = TILES, record: bool = True, interruptible: bool = False, **changes: object) -> FlowStage:
    """A stage with these batch sizes only, since each takes seconds to compile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GraphFlowRunner, "record", lambda _: None)
        stage = plain_stage(kernels="graphs", **changes)
    assert stage.pages is not None
    left = stage.left_context_chunks
    stage.runner = GraphFlowRunner(network_of(stage), pages_of(stage), left, tiles, interruptible=interruptible)
    if record:
        stage.runner.record()
    return stage


@pytest.fixture(autouse=True)
def exact_float32() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def prompt(tokens: int, seed: int = 0) -> VoicePrompt:
    rng = np.random.default_rng(seed)
    return VoicePrompt(
        prompt_text="",
        speech_tokens=rng.integers(0, FLOW.vocab_size, tokens).astype(np.int32),
        speech_feat=rng.standard_normal((2 * tokens, FLOW.output_size)).astype(np.float32),
        speaker_embedding=rng.standard_normal(FLOW.spk_embed_dim).astype(np.float32),
    )


def tokens(count: int, seed: int) -> list[int]:
    drawn: list[int] = np.random.default_rng([seed, 7]).integers(0, FLOW.vocab_size, count).tolist()
    return drawn


def speak(stage: FlowStage, voices: Sequence[VoicePrompt], hops: Sequence[Sequence[int]], first_row: int = 0) -> list[Tensor]:
    """All sessions together, hop by hop; returns the whole mel of each. The last hop is final."""
    states = [stage.open(voice) for voice in voices]
    pieces: list[list[Tensor]] = [[] for _ in voices]
    for number, counts in enumerate(hops):
        given = [
            FlowHop(state, tokens(count, 100 * number + first_row + row), number == len(hops) - 1)
            for row, (state, count) in enumerate(zip(states, counts, strict=True))
        ]
        for row, mel in enumerate(stage.hop(given)):
            assert isinstance(mel, Tensor), mel
            pieces[row].append(mel.float().cpu())
    for state in states:
        state.close()
    stage.check_integrity()
    return [torch.cat(mels, dim=1) for mels in pieces]


def snr_db(found: Tensor, exact: Tensor) -> float:
    assert found.shape == exact.shape and torch.isfinite(found).all()
    return float(10 * torch.log10(exact.double().square().sum() / (found.double() - exact.double()).square().sum().clamp(min=1e-30)))


VOICES = [prompt(75, 1), prompt(0, 2), prompt(131, 3), prompt(28, 4)]
HOPS = [(18, 18, 1, 40), (25, 13, 60, 0), (1, 30, 25, 2)]


@cache
def exact_mels(left_context_chunks: int = 0) -> list[Tensor]:
    return speak(plain_stage(dtype="float32", left_context_chunks=left_context_chunks), VOICES, HOPS)


@cache
def recorded_stage() -> FlowStage:
    return graph_stage()


def test_the_configuration_chooses_the_runner() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bistream.token2mel.graphs.runner.TILES", TILES)
        stage = plain_stage(kernels="graphs")
    assert isinstance(stage.runner, GraphFlowRunner)
    assert not isinstance(plain_stage(kernels="plain").runner, GraphFlowRunner)
    for found, exact in zip(speak(stage, VOICES, HOPS), exact_mels(), strict=True):
        assert snr_db(found, exact) > FLOAT16_DB


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tiles", [2, 6])
def test_attention_over_listed_pages(dtype: torch.dtype, tiles: int) -> None:
    """Pages in any order, partly filled ones, a tile that sees nothing; pages that no tile sees are full of NaN."""
    heads, width, rows, count, longest = 8, 256, 64, 40, 12
    generator = torch.Generator(device="cuda").manual_seed(0)
    query = torch.randn(tiles, rows, heads * width, device="cuda", generator=generator).to(dtype)
    pages = torch.full((count, rows, width), float("nan"), device="cuda", dtype=dtype)
    rng = np.random.default_rng(tiles)
    visible = rng.integers(1, longest + 1, tiles).astype(np.int32)
    visible[-1] = 0
    lists = np.stack([rng.permutation(count)[:longest] for _ in range(tiles)]).astype(np.int32)
    live = rng.integers(1, 51, count).astype(np.int32)
    for tile in range(tiles):
        for page in lists[tile, : visible[tile]].tolist():
            pages[page] = torch.randn(rows, width, device="cuda", generator=generator).to(dtype)
    seen, listed, in_page = (torch.from_numpy(array).cuda() for array in (visible, lists, live))
    shared = int(getattr(torch.cuda.get_device_properties(0), "shared_memory_per_block_optin"))  # noqa: B009  (not in the stubs)
    options = kernel_options(width, dtype.itemsize, shared)
    found = compile_per_size(attend_flex)(query, pages, pages, seen, listed, in_page, heads, 0.05, options=options)
    exact = attend_gathered(query.float(), pages.float(), pages.float(), seen, listed, in_page, heads, 0.05)
    assert not found[-1].any()
    assert snr_db(found[:-1].cpu(), exact[:-1].cpu()) > (60.0 if dtype is torch.float16 else 42.0)


def test_ragged_sessions_match_the_plain_network() -> None:
    for found, exact in zip(speak(recorded_stage(), VOICES, HOPS), exact_mels(), strict=True):
        assert snr_db(found, exact) > FLOAT16_DB


def test_bounded_left_context() -> None:
    for found, exact in zip(speak(graph_stage(left_context_chunks=2), VOICES, HOPS), exact_mels(2), strict=True):
        assert snr_db(found, exact) > FLOAT16_DB


def test_bfloat16() -> None:
    for found, exact in zip(speak(graph_stage(dtype="bfloat16"), VOICES, HOPS), exact_mels(), strict=True):
        assert snr_db(found, exact) > 30.0


def test_graphs_change_nothing() -> None:
    launched = speak(graph_stage(record=False), VOICES, HOPS)
    for found, exact in zip(speak(recorded_stage(), VOICES, HOPS), launched, strict=True):
        assert snr_db(found, exact) > REPEAT_DB


def test_results_do_not_depend_on_the_batch() -> None:
    stage = recorded_stage()
    together = speak(stage, VOICES, HOPS)
    for row, voice in enumerate(VOICES):
        alone = speak(stage, [voice], [(counts[row],) for counts in HOPS], first_row=row)
        assert snr_db(together[row], alone[0]) > FLOAT16_DB


@pytest.mark.parametrize("tiles", [(1,), (2, 3), (4, 32)], ids=str)
def test_calls_are_cut_into_batches(tiles: tuple[int, ...]) -> None:
    """Including spans beyond the largest one, which the plain network computes and whose state the next hop reads."""
    for found, exact in zip(speak(graph_stage(tiles), VOICES, HOPS), exact_mels(), strict=True):
        assert snr_db(found, exact) > FLOAT16_DB


def test_many_sessions() -> None:
    """More chunks that are not kept than there are scratch pages at once."""
    voices = [prompt(30 + row, row) for row in range(40)]
    hops = [tuple(18 + row % 7 for row in range(40)), (25,) * 40, (30,) * 40]
    stage = graph_stage((64,), flow_state_mb=6000)
    exact = speak(plain_stage(dtype="float32", flow_state_mb=8000), voices, hops)
    for found, expected in zip(speak(stage, voices, hops), exact, strict=True):
        assert snr_db(found, expected) > FLOAT16_DB


def test_a_session_with_nan_fails_alone() -> None:
    stage = recorded_stage()
    bad = dataclasses.replace(prompt(10, 9), speaker_embedding=np.full(FLOW.spk_embed_dim, np.nan, np.float32))
    healthy, broken = stage.open(VOICES[0]), stage.open(bad)
    results = stage.hop([FlowHop(broken, tokens(60, 1), False), FlowHop(healthy, tokens(18, 0), False)])
    assert isinstance(results[0], EngineError)
    assert isinstance(results[1], Tensor) and torch.isfinite(results[1]).all()
    healthy.close()
    broken.close()
    for found, exact in zip(speak(stage, VOICES, HOPS), exact_mels(), strict=True):  # the failed session's pages are used again
        assert snr_db(found, exact) > FLOAT16_DB


def test_a_failure_of_the_encoder_fails_the_sessions_of_the_call_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = recorded_stage()
    state = stage.open(VOICES[3])

    def broken(*_: object) -> Tensor:
        raise RuntimeError("device lost")

    with monkeypatch.context() as patch:
        patch.setattr(type(stage.runner.network), "encode", broken)
        assert isinstance(stage.hop([FlowHop(state, tokens(10, 0), False)])[0], EngineError)
    state.close()
    for found, exact in zip(speak(stage, VOICES, HOPS), exact_mels(), strict=True):
        assert snr_db(found, exact) > FLOAT16_DB


def test_offline_synthesis_runs_on_the_plain_network() -> None:
    found = recorded_stage().synthesize(tokens(60, 1), VOICES[0])
    exact = plain_stage(dtype="float32").synthesize(tokens(60, 1), VOICES[0])
    assert snr_db(found.cpu(), exact.cpu()) > FLOAT16_DB
