"""The tier of recorded graphs, unrecorded on the CPU: any split into batches, any chunk size, any old content of pages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bistream.gpu.tier import Tier
from bistream.token2mel.batching import Span
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


@cache
def plain_stage(left: int) -> FlowStage:
    return make_stage(left_context_chunks=left)


@settings(max_examples=3, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(prompt_sizes, hop_sizes), min_size=2, max_size=4),
    st.sampled_from([(1,), (1, 2), (2, 3, 5)]),
    st.sampled_from([0, 0, 1, 2]),
)
def test_any_sizes_of_batches_give_the_same(sessions: list[tuple[int, list[int]]], tiles: tuple[int, ...], left: int) -> None:
    """Calls are split into batches, and spans beyond the largest one go to the plain network, whose state the next hop reads."""
    subject, plain = graph_stage(tiles, left_context_chunks=left), plain_stage(left)
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
    expected = run(plain_stage(left), make_prompt(37), pieces)
    for mel, exact in zip(run(subject, make_prompt(37), pieces), expected, strict=True):
        assert_same(mel, exact)
    assert not pages.context_rows[..., TINY.estimator.static_chunk_size :, :].any(), "rows after a chunk's frames stay zero"


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
