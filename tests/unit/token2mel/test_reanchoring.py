"""Sessions longer than the flow's context: they forget the older half of their speech and go on without a joint."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.errors import InvalidInputError
from bistream.token2mel.stage import FlowHop, FlowStage
from tests.unit.token2mel.flow_fixtures import assert_same, cut, hop_mel, make_prompt, make_stage, make_tokens, prompt_sizes, run

CHUNK = 25


def stage(context_s: float, *, period_tokens: int = 0, **options: object) -> FlowStage:
    """period_tokens: the noise repeats after so many tokens, so that a shift by a multiple of them changes nothing."""
    made = make_stage(flow_context_s=context_s, **options)  # type: ignore[arg-type]
    if period_tokens:
        noise = made.runner.network.matching.noise
        frames = 2 * period_tokens
        noise.copy_(noise[:frames].repeat(-(-len(noise) // frames), 1)[: len(noise)])
    return made


def pieces_of(total: int, sizes: list[int]) -> list[list[int]]:
    """``total`` tokens in hops of these sizes, again and again."""
    found: list[int] = []
    while sum(found) < total:
        found.append(sizes[len(found) % len(sizes)])
    return cut(make_tokens(sum(found)), found)


@settings(max_examples=2)
@given(prompt_sizes, st.lists(st.integers(30, 80), min_size=1, max_size=4), st.integers(8, 11), st.sampled_from([1, 2]))
def test_forgetting_beyond_reach_changes_nothing(prompt: int, sizes: list[int], context_s: int, left: int) -> None:
    """With bounded attention the forgotten speech is out of reach, and periodic noise is the same at the new positions: the mel is
    that of a session that does not forget."""
    voice, pieces = make_prompt(prompt), pieces_of(25 * context_s + 100, sizes)
    expected = run(stage(300.0, period_tokens=CHUNK, left_context_chunks=left), voice, pieces)
    found = run(stage(context_s, period_tokens=CHUNK, left_context_chunks=left), voice, pieces)
    for mel, other in zip(found, expected, strict=True):
        assert_same(mel, other)


@settings(max_examples=3)
@given(
    prompt_sizes,
    st.lists(st.integers(0, 70), min_size=1, max_size=4).filter(any),
    st.integers(7, 10),
    st.sampled_from([0, 2, 3]),
    st.booleans(),
)
def test_a_long_session_stays_within_its_context(
    prompt: int, sizes: list[int], context_s: int, left: int, is_short_of_memory: bool
) -> None:
    """Every token gets its frames; tokens, pages and positions stay bounded and consistent, also where the pool made it forget before."""
    subject = stage(context_s, left_context_chunks=left, flow_state_mb=2 if is_short_of_memory else 16, reserve_tokens=50)
    state = subject.open(make_prompt(prompt))
    frames = 0
    for piece in (pieces := pieces_of(300, sizes)):
        frames += hop_mel(subject, state, piece, piece is pieces[-1]).shape[1]
        assert len(state.tokens) <= CHUNK * context_s
        assert state.tokens[:prompt] == state.prompt.speech_tokens.tolist()
        assert state.committed % CHUNK == 0 and state.committed <= state.emitted_frames // 2 <= len(state.tokens)
        if piece is not pieces[-1]:
            assert len(state.pages) <= state.committed // CHUNK
        if not (left or is_short_of_memory):
            assert len(state.pages) * CHUNK == state.committed or not state.pages
        subject.check_integrity()
    assert frames == 2 * sum(map(len, pieces))
    state.close()
    assert subject.pool.available == subject.pool.total


def test_where_it_forgets_depends_on_its_tokens_alone() -> None:
    subject, alone = stage(8.0, flow_state_mb=16), stage(8.0, flow_state_mb=16)
    voices, pieces = [make_prompt(30, seed) for seed in range(2)], pieces_of(300, [75])
    expected = [run(alone, voice, pieces) for voice in voices]
    states = [subject.open(voice) for voice in voices]
    for index, piece in enumerate(pieces):
        results = subject.hop([FlowHop(state, piece, piece is pieces[-1]) for state in states])
        for result, mels in zip(results, expected, strict=True):
            assert_same(result, mels[index])


def test_there_is_no_joint_in_the_mel() -> None:
    """The step from the last frame before to the first after forgetting is one of many: not above all that are inside of speech."""
    subject, pieces = stage(8.0), pieces_of(400, [28] + [CHUNK] * 15)
    state = subject.open(make_prompt(30))
    mels, joints, frames, before = [], [], 0, 0
    for piece in pieces:
        mels.append(hop_mel(subject, state, piece, piece is pieces[-1]))
        if len(state.tokens) < before:
            joints.append(frames)
        before, frames = len(state.tokens), frames + mels[-1].shape[1]
    mel = torch.cat(mels, dim=1).numpy()
    steps = np.abs(np.diff(mel, axis=1)).mean(axis=0)
    assert len(joints) >= 2
    at_joints, usual = steps[[joint - 1 for joint in joints]], np.delete(steps, [joint - 1 for joint in joints])
    assert at_joints.max() <= usual.max(), (at_joints, usual.max())


def test_a_hop_or_a_voice_beyond_the_context_is_refused() -> None:
    subject = stage(6.0)
    with pytest.raises(InvalidInputError, match="within 6 s"):
        subject.open(make_prompt(150))
    state = subject.open(make_prompt(50))
    refused = subject.hop([FlowHop(state, make_tokens(101), False)])[0]
    assert isinstance(refused, InvalidInputError)
    assert hop_mel(subject, state, make_tokens(100), True).shape[1] == 200
    subject.check_integrity()
