"""CosyVoice3's flow in the tier of recorded graphs, unrecorded on the CPU: equal to the plain network for any hops in any batches."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bistream.checkpoints.config import CheckpointConfig, DitFlowConfig
from bistream.config import RuntimeConfig
from bistream.errors import ConfigError, EngineError
from bistream.gpu.tier import KERNELS_TRITON, Tier
from bistream.token2mel.dit.network import DitFlow
from bistream.token2mel.dit.pages import DitPages
from bistream.token2mel.factory import flow_tier
from bistream.token2mel.graphs import dit_operations
from bistream.token2mel.graphs.batch import BatchSize
from bistream.token2mel.graphs.dit_runner import DitGraphRunner
from bistream.token2mel.page_pool import SCRATCH_PAGE, ZERO_PAGE
from bistream.token2mel.stage import FlowHop, FlowStage
from tests.unit.launches import Launches
from tests.unit.token2mel.flow_fixtures import (
    DIT_CHECKPOINT,
    TINY_DIT,
    assert_same,
    cut,
    hop_mel,
    hop_sizes,
    make_prompt,
    make_stage,
    make_tokens,
    prompt_sizes,
    run,
)
from tests.unit.token2mel.test_interruptions import ROUNDS, make_groups
from tests.unit.token2mel.test_interruptions import sizes as sizes_of_hops

SMALL = (BatchSize(1, 8), BatchSize(2, 8), BatchSize(4, 16))
SPLIT = (BatchSize(1, 4), BatchSize(3, 5))


def graph_stage(sizes: Sequence[BatchSize] = SMALL, **options: object) -> FlowStage:
    """A stage with these batch sizes."""
    stage = make_stage(**{"checkpoint": DIT_CHECKPOINT, "tier": Tier.PLAIN, **options})  # type: ignore[arg-type]
    network, pages = stage.runner.network, pages_of(stage)
    assert isinstance(network, DitFlow)
    stage.runner = DitGraphRunner(network, pages, stage.left_context_chunks, sizes, interruptible=True)
    return stage


def pages_of(stage: FlowStage) -> DitPages:
    assert isinstance(stage.pages, DitPages)
    return stage.pages


@functools.cache
def plain_stage(left_context_chunks: int = 0) -> FlowStage:
    return make_stage(left_context_chunks=left_context_chunks, checkpoint=DIT_CHECKPOINT)


@functools.cache
def shared_stage(sizes: tuple[BatchSize, ...], left_context_chunks: int) -> FlowStage:
    return graph_stage(sizes, left_context_chunks=left_context_chunks)


@settings(max_examples=3, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(prompt_sizes, hop_sizes, st.integers(0, 2), st.integers(0, 1)), min_size=1, max_size=3),
    st.sampled_from([SMALL, SPLIT]),
    st.sampled_from([0, 0, 1, 2]),
)
def test_any_hops_in_any_batches_give_the_same(
    sessions: list[tuple[int, list[int], int, int]], sizes: tuple[BatchSize, ...], left: int
) -> None:
    """Voices may be shared, sessions begin and end at different times, calls are split into batches, and spans beyond the largest batch
    are computed by the plain network from the same stored state."""
    subject, plain = shared_stage(sizes, left), plain_stage(left)
    prompts = [make_prompt(tokens, voice) for tokens, _, _, voice in sessions]
    pieces = [cut(make_tokens(sum(hops), seed), hops) for seed, (_, hops, _, _) in enumerate(sessions)]
    expected = [run(plain, prompt, hops) for prompt, hops in zip(prompts, pieces, strict=True)]
    states = [subject.open(prompt) for prompt in prompts]
    for step in range(max(delay + len(hops) for _, hops, delay, _ in sessions)):
        due = [row for row, (_, hops, delay, _) in enumerate(sessions) if 0 <= step - delay < len(hops)]
        at = {row: step - sessions[row][2] for row in due}
        hops = [FlowHop(states[row], pieces[row][at[row]], at[row] == len(pieces[row]) - 1) for row in due]
        for row, mel in zip(due, subject.hop(hops), strict=True):
            assert_same(mel, expected[row][at[row]])
        subject.check_integrity()
    for state in states:
        state.close()
    subject.check_integrity()


@pytest.mark.parametrize("left", [0, 1])
def test_old_content_of_pages_is_not_read(left: int) -> None:
    subject, pieces = graph_stage(SMALL, left_context_chunks=left), cut(make_tokens(140), [18, 25, 60, 7, 30])
    pages = pages_of(subject)
    for store in (pages.context.permute(3, 0, 1, 2, 4, 5), pages.tail.permute(2, 0, 1, 3, 4)):
        store[:ZERO_PAGE].fill_(float("nan"))
        store[ZERO_PAGE + 1 :].fill_(float("nan"))
    expected = run(plain_stage(left), make_prompt(37), pieces)
    for mel, exact in zip(run(subject, make_prompt(37), pieces), expected, strict=True):
        assert_same(mel, exact)


def test_the_plain_network_goes_on_from_the_same_pages() -> None:
    """Stored state is what the plain network stores, except in pages that nobody reads."""
    subject, plain, tokens = graph_stage(), make_stage(checkpoint=DIT_CHECKPOINT), make_tokens(60)
    for stage in (subject, plain):
        for store in (pages_of(stage).context, pages_of(stage).tail):
            store.nan_to_num_(0.0).zero_()
        hop_mel(stage, stage.open(make_prompt(37)), tokens)
    for name, axis in (("context", 3), ("tail", 2)):
        found, expected = (getattr(pages_of(stage), name).movedim(axis, 0) for stage in (subject, plain))
        assert torch.count_nonzero(expected[SCRATCH_PAGE + 1 :].abs().flatten(1).sum(1)) == 3, "chunks of 97 tokens, less their lookahead"
        torch.testing.assert_close(found[SCRATCH_PAGE + 1 :], expected[SCRATCH_PAGE + 1 :], rtol=0, atol=1e-5)


def test_sessions_that_forget_their_oldest_speech_are_moved_together() -> None:
    """The page of a voice is then read at two places in one batch, by such a session and by a new one."""
    mels = []
    for stage in (graph_stage(flow_state_mb=2), make_stage(flow_state_mb=2, checkpoint=DIT_CHECKPOINT)):
        rest = stage.pool.total - 8
        stage.pool.take(stage.pool.open(rest, b"", 0), rest)  # another owner holds them
        stage.reserve_chunks = 0
        prompt, pieces = make_prompt(30), cut(make_tokens(200), [50] * 4)
        old, new = stage.open(prompt), stage.open(prompt)
        mels.append([hop_mel(stage, old, piece) for piece in pieces])
        for result in stage.hop([FlowHop(old, pieces[0], False), FlowHop(new, pieces[1], False)]):
            assert isinstance(result, Tensor), result
            mels[-1].append(result)
        assert old.has_forgotten and old.pages[0] == new.pages[0], "the voice's page"
    for found, exact in zip(*mels, strict=True):
        assert_same(found, exact)


@settings(max_examples=3, deadline=None, derandomize=True)
@given(hops=st.lists(sizes_of_hops, min_size=2, max_size=3), turns=st.lists(st.integers(0, 2), max_size=40))
def test_any_interleaving_of_solver_steps_is_bit_equal(hops: list[list[tuple[int, ...]]], turns: list[int]) -> None:
    alone, subject = graph_stage(), graph_stage()
    expected, groups = make_groups(alone, hops), make_groups(subject, hops)
    for group in expected:
        while group.step(alone):
            pass
    for turn in turns:
        groups[turn % len(groups)].step(subject)
    while any([group.step(subject) for group in groups]):
        pass
    for found, exact in zip(groups, expected, strict=True):
        assert len(found.mels) == len(exact.mels) == ROUNDS
        for mels, others in zip(found.mels, exact.mels, strict=True):
            assert all(torch.equal(mel, other) for mel, other in zip(mels, others, strict=True))
    subject.check_integrity()


@pytest.mark.parametrize("prompt_tokens", [10, 60])
def test_non_finite_numbers_fail_their_session_only(prompt_tokens: int) -> None:
    """In the hop itself, and in the shared state of a voice; the pages, slots and buffers that they were in harm nobody later."""
    subject, tokens = graph_stage(), make_tokens(30)
    healthy = make_prompt(prompt_tokens)
    features = healthy.speech_feat.copy()
    features[-1] = np.nan
    expected = run(plain_stage(), healthy, [tokens], last_is_final=False)
    states = [subject.open(prompt) for prompt in (dataclasses.replace(healthy, speech_feat=features), healthy)]
    bad, good = subject.hop([FlowHop(state, tokens, False) for state in states])
    assert isinstance(bad, EngineError)
    assert_same(good, expected[0])
    for state in states:
        state.close()
    for seed in range(3):
        other, pieces = make_prompt(60, seed), cut(tokens * 3, [60, 30])
        for mel, exact in zip(run(subject, other, pieces), run(plain_stage(), other, pieces), strict=True):
            assert_same(mel, exact)


@pytest.mark.parametrize("dtype, floor_db", [("bfloat16", 40), ("float16", 58)])
def test_16_bit_is_as_close_to_float32_as_the_plain_network(dtype: str, floor_db: float) -> None:
    prompt, pieces = make_prompt(50), cut(make_tokens(90), [30, 30, 30])
    exact = torch.cat(run(plain_stage(), prompt, pieces), dim=1)
    half = torch.cat(run(graph_stage(dtype=dtype), prompt, pieces), dim=1)
    assert half.dtype == torch.float32
    assert 10 * torch.log10(exact.pow(2).sum() / (half - exact).pow(2).sum()) > floor_db


def test_other_sizes_of_chunks() -> None:
    """A chunk of 40 tokens has more frames than one block of the attention."""
    flow = dataclasses.replace(TINY_DIT, dit=dataclasses.replace(TINY_DIT.dit, static_chunk_size=80))
    checkpoint, pieces = CheckpointConfig(flow=flow), cut(make_tokens(120), [18, 45, 57])
    expected = run(make_stage(checkpoint=checkpoint), make_prompt(50), pieces)
    for mel, exact in zip(run(graph_stage(checkpoint=checkpoint), make_prompt(50), pieces), expected, strict=True):
        assert_same(mel, exact)


def test_the_usual_sizes_serve() -> None:
    subject, pieces = make_stage(tier=Tier.GRAPHS, checkpoint=DIT_CHECKPOINT), cut(make_tokens(60), [30, 30])
    assert isinstance(subject.runner, DitGraphRunner)
    for mel, exact in zip(run(subject, make_prompt(28), pieces), run(plain_stage(), make_prompt(28), pieces), strict=True):
        assert_same(mel, exact)
    assert_same(subject.synthesize(pieces[0], make_prompt(10)), plain_stage().synthesize(pieces[0], make_prompt(10)), 0)


def test_a_batch_size_can_be_recorded() -> None:
    """It launches the same operations for batches with and without stored state, and for none; the attention is compiled on a GPU."""
    stage, size = make_stage(checkpoint=DIT_CHECKPOINT), BatchSize(4, 16)
    assert isinstance(stage.runner.network, DitFlow)
    attention_left_out = dataclasses.replace(
        dit_operations.plain_operations(), attend=lambda own, *_: torch.zeros_like(own.chunk(3, dim=2)[0])
    )
    runner = DitGraphRunner(stage.runner.network, pages_of(stage), 0, (size,), attention_left_out)
    stage.runner = runner
    (call,) = runner._calls
    state, seen = stage.open(make_prompt(30)), []
    for count in (3, 40, 60):
        hop_mel(stage, state, make_tokens(count))
        with Launches() as launches:
            runner._launch(call, range(TINY_DIT.n_timesteps))
        seen.append(launches.seen)
    call.memory.clear()
    with Launches() as launches:
        runner._launch(call, range(TINY_DIT.n_timesteps))
    assert len(launches.seen) > 100 and all(other == launches.seen for other in seen)


def test_every_cuda_gpu_gets_recorded_graphs(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    gpu = torch.device("cuda")
    monkeypatch.setattr("bistream.gpu.tier._triton_version", lambda: "3.6.0")
    monkeypatch.setattr("bistream.gpu.tier.torch.cuda", SimpleNamespace(
        get_device_capability=lambda _: (9, 0), get_device_name=lambda _: "a GPU"
    ))  # fmt: skip
    monkeypatch.setattr("bistream.gpu.tier._triton_version", lambda: KERNELS_TRITON)
    with caplog.at_level("INFO"):
        choice = flow_tier(RuntimeConfig(), DitFlowConfig(), gpu, torch.float16)
    assert choice.tier is Tier.GRAPHS
    assert caplog.messages == ["flow: recorded PyTorch graphs on a GPU (own kernels need a flow with a U-Net)"]
    assert flow_tier(RuntimeConfig(), DitFlowConfig(), gpu, torch.float32).tier is Tier.PLAIN
    narrow = flow_tier(RuntimeConfig(), TINY_DIT, gpu, torch.float16)
    assert narrow.tier is Tier.PLAIN and "groups of the position convolutions of 16, 32, 64 or 128 channels" in narrow.sentence
    with pytest.raises(ConfigError, match="U-Net"):
        flow_tier(RuntimeConfig(kernels="kernels"), DitFlowConfig(), gpu, torch.float16)
