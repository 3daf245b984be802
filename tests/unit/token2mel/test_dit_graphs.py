"""CosyVoice3's flow in the tier of recorded graphs, unrecorded on the CPU: equal to the plain network for any hops in any batches."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bistream.gpu.fidelity import ratio_db
from bistream.token2mel.dit.graphs.batch import BatchSize
from bistream.token2mel.dit.graphs.runner import DitGraphRunner
from bistream.token2mel.dit.network import DitFlow
from bistream.token2mel.dit.pages import DitPages
from bistream.token2mel.page_pool import SCRATCH_PAGE, ZERO_PAGE
from bistream.token2mel.stage import FlowHop, FlowStage
from tests.plain_dit import PLAIN
from tests.unit.token2mel.flow_fixtures import (
    DIT_CHECKPOINT,
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

SMALL = (BatchSize(50, 2, 8), BatchSize(75, 3, 8), BatchSize(200, 8, 16))
SPLIT = (BatchSize(30, 1, 4), BatchSize(150, 3, 5))


def graph_stage(sizes: Sequence[BatchSize] = SMALL, **options: object) -> FlowStage:
    """A stage with these batch sizes."""
    stage = make_stage(**{"checkpoint": DIT_CHECKPOINT, **options})  # type: ignore[arg-type]
    network, pages = stage.runner.network, pages_of(stage)
    assert isinstance(network, DitFlow)
    stage.runner = DitGraphRunner(network, pages, stage.left_context_chunks, sizes, operations=PLAIN)
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


@settings(max_examples=3)
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
    for store in (pages.context.values.movedim(3, 0), pages.tail.values.movedim(2, 0)):
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
            store.zero_()
        hop_mel(stage, stage.open(make_prompt(37)), tokens)
    for name, axis in (("context", 3), ("tail", 2)):
        found, expected = (getattr(pages_of(stage), name).values.movedim(axis, 0) for stage in (subject, plain))
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


@pytest.mark.parametrize("dtype, least_db", [("bfloat16", 38), ("float16", 45)])
def test_state_of_8_bit_leaves_the_mel_as_it_is(dtype: str, least_db: float) -> None:
    """Both forms, in 16 bit, against the plain network in float32, which stores all of it. Seen: 41 and 50 dB."""
    pieces, prompt = cut(make_tokens(90), [18, 42, 30]), make_prompt(37)
    exact = torch.cat(run(plain_stage(), prompt, pieces), dim=1)
    for stage in (make_stage(checkpoint=DIT_CHECKPOINT, dtype=dtype), graph_stage(dtype=dtype)):
        assert pages_of(stage).context.values.dtype == torch.int8
        assert ratio_db(exact, torch.cat(run(stage, prompt, pieces), dim=1)) > least_db
