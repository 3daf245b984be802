"""The tier of recorded graphs, unrecorded on the CPU: any split into batches, any chunk size, any old content of pages."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bistream.checkpoints.config import CheckpointConfig
from bistream.gpu.tier import Tier
from bistream.token2mel.batching import Span
from bistream.token2mel.graphs import recorded
from bistream.token2mel.graphs.attention import kernel_options
from bistream.token2mel.graphs.runner import GraphFlowRunner
from bistream.token2mel.page_pool import ZERO_PAGE
from bistream.token2mel.solving import SpanGroup
from bistream.token2mel.stage import FlowHop, FlowStage
from tests.unet import network_of, pages_of
from tests.unit.token2mel.flow_fixtures import (
    TINY,
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


def graph_stage(tiles: Sequence[int], **options: object) -> FlowStage:
    """A stage with these batch sizes."""
    stage = make_stage(tier=Tier.GRAPHS, **options)  # type: ignore[arg-type]
    assert stage.pages is not None
    stage.runner = GraphFlowRunner(network_of(stage), pages_of(stage), stage.left_context_chunks, tiles)
    return stage


@pytest.fixture(scope="module")
def plain() -> FlowStage:
    return make_stage()


@settings(max_examples=4, deadline=None, derandomize=True)
@given(st.lists(st.tuples(prompt_sizes, hop_sizes), min_size=2, max_size=4), st.sampled_from([(1,), (1, 2), (2, 3, 5)]))
def test_any_sizes_of_batches_give_the_same(plain: FlowStage, sessions: list[tuple[int, list[int]]], tiles: tuple[int, ...]) -> None:
    """Calls are split into batches, and spans beyond the largest one go to the plain network, whose state the next hop reads."""
    subject = graph_stage(tiles)
    count = max(len(sizes) for _, sizes in sessions)
    pieces = [cut(make_tokens(sum(sizes), seed), [*sizes, *[0] * (count - len(sizes))]) for seed, (_, sizes) in enumerate(sessions)]
    prompts = [make_prompt(tokens, seed) for seed, (tokens, _) in enumerate(sessions)]
    states = [subject.open(prompt) for prompt in prompts]
    expected = [run(plain, prompt, hops) for prompt, hops in zip(prompts, pieces, strict=True)]
    for step in range(count):
        hops = [FlowHop(state, piece[step], step == count - 1) for state, piece in zip(states, pieces, strict=True)]
        for row, mel in enumerate(subject.hop(hops)):
            assert isinstance(mel, Tensor), mel
            assert_same(mel, expected[row][step])
    subject.check_integrity()


@pytest.mark.parametrize("left", [0, 1])
def test_old_content_of_a_page_is_not_read(left: int) -> None:
    subject, pieces = graph_stage((1, 4), left_context_chunks=left), cut(make_tokens(140), [18, 25, 60, 7, 30])
    pages = pages_of(subject)
    for store in (pages.context.permute(3, 0, 1, 2, 4, 5), pages.tail.permute(2, 0, 1, 3, 4)):
        store[:ZERO_PAGE].fill_(float("nan"))
        store[ZERO_PAGE + 1 :].fill_(float("nan"))
    expected = run(make_stage(left_context_chunks=left), make_prompt(37), pieces)
    for mel, exact in zip(run(subject, make_prompt(37), pieces), expected, strict=True):
        assert_same(mel, exact)
    assert not pages.context_rows[..., TINY.estimator.static_chunk_size :, :].any(), "rows after a chunk's frames stay zero"


@pytest.mark.parametrize("chunk_tokens", [8, 40])
def test_other_sizes_of_chunks(chunk_tokens: int) -> None:
    flow = dataclasses.replace(
        TINY,
        encoder=dataclasses.replace(TINY.encoder, static_chunk_size=chunk_tokens),
        estimator=dataclasses.replace(TINY.estimator, static_chunk_size=2 * chunk_tokens),
    )
    checkpoint = CheckpointConfig(flow=flow)
    pieces = cut(make_tokens(120), [18, 45, 57])
    expected = run(make_stage(checkpoint=checkpoint), make_prompt(50), pieces)
    for mel, exact in zip(run(graph_stage((1, 8), checkpoint=checkpoint), make_prompt(50), pieces), expected, strict=True):
        assert_same(mel, exact)


def test_streams_run_packed_and_offline_synthesis_on_the_plain_network(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = graph_stage((2,))
    runner = subject.runner
    assert isinstance(runner, GraphFlowRunner)
    plainly: list[Span] = []
    from_the_start = runner.from_the_start

    def recorded(spans: Sequence[Span]) -> list[tuple[Sequence[int], SpanGroup]]:
        plainly.extend(spans)
        return from_the_start(spans)

    monkeypatch.setattr(runner, "from_the_start", recorded)
    state = subject.open(make_prompt(10))
    hop_mel(subject, state, make_tokens(30))
    assert not plainly
    hop_mel(subject, state, make_tokens(60))
    assert [span.streaming for span in plainly] == [True], "three chunks do not fit two tiles"
    state.close()
    whole = subject.synthesize(make_tokens(5), make_prompt(10))
    assert_same(whole, make_stage().synthesize(make_tokens(5), make_prompt(10)), 0)


def test_a_stage_reports_the_memory_that_its_pages_take() -> None:
    stages = make_stage(), make_stage(tier=Tier.GRAPHS)
    for stage in stages:
        pages = pages_of(stage)
        tensors = (pages.context_rows, pages.tail, pages.token_keys_values, pages.frame_keys_values)
        size = sum(tensor.nbytes for tensor in (*tensors, pages.upsample_tail))
        assert stage.page_bytes * pages.upsample_tail.shape[0] == size
        assert abs(size / 2**20 - 64) < 1.0
        assert stage.pool.total + len(pages.scratch) + 2 == pages.upsample_tail.shape[0]


@pytest.mark.parametrize("kilobytes", [48, 99, 227])
@pytest.mark.parametrize("width", [64, 256, 512])
def test_programs_of_the_attention_fit_the_gpu(kilobytes: int, width: int) -> None:
    options = kernel_options(width, 2, kilobytes * 1024)
    assert 64 % options["BLOCK_M"] == 0 and 64 % options["BLOCK_N"] == 0
    if width < 512 or kilobytes > 64:
        used = (options["BLOCK_M"] + 2 * options["num_stages"] * options["BLOCK_N"]) * width * 2
        assert used <= kilobytes * 1024


def test_warming_the_encoder_leaves_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "WARM_ROWS", (1, 4))
    stage = graph_stage((4, 8))
    assert isinstance(stage.runner, GraphFlowRunner)
    pages = pages_of(stage)
    stores = (pages.token_keys_values, pages.frame_keys_values, pages.upsample_tail)
    before = [torch.nan_to_num(store) for store in stores]
    stage.runner._warm_encoder()
    for store, kept in zip(stores, before, strict=True):
        torch.testing.assert_close(torch.nan_to_num(store), kept, rtol=0, atol=0)
