"""Which part of a new voice's shared prompt state is computed next. No torch. Called by ``stage``."""

from __future__ import annotations

from collections.abc import Sequence

from bistream.token2mel.batching import Span
from bistream.token2mel.page_pool import SCRATCH_PAGE, Prefix
from bistream.token2mel.state import FlowState, FlowStatus

PIECE_CHUNKS_ON_CPU = 2  # of a new voice's prompt, between which hops run; a GPU computes a whole prompt faster than a hop waits


def incomplete(states: Sequence[FlowState]) -> list[tuple[Prefix, FlowState]]:
    """Each prefix of these sessions whose state is not complete, with one session that needs it."""
    found: dict[int, tuple[Prefix, FlowState]] = {}
    for state in states:
        prefix = state.account.prefix
        if prefix is not None and not prefix.ready:
            found[id(prefix)] = (prefix, state)
    return list(found.values())


def needs_preparation(state: FlowState, chunk_tokens: int, max_chunks: int | None) -> bool:
    """Whether more than ``max_chunks`` of the state of a session's voice are missing. False for None."""
    prefix = state.account.prefix
    if prefix is None or prefix.ready or max_chunks is None or state.status is not FlowStatus.OPEN:
        return False
    return state.committed // chunk_tokens - prefix.computed > max_chunks


def next_span(prefix: Prefix, state: FlowState, chunk_tokens: int, max_chunks: int | None) -> Span:
    """The next ``max_chunks`` chunks of a prompt; all that are missing for None, which bounded left context requires."""
    complete = state.committed // chunk_tokens
    skipped = complete - len(prefix.pages)  # chunks out of reach of the bounded left context
    assert max_chunks is None or not skipped
    first = prefix.computed
    end = complete if max_chunks is None else min(complete, first + max_chunks)
    keep = (SCRATCH_PAGE,) * skipped + prefix.pages[first : end - skipped]
    return Span(state.tokens, first * chunk_tokens, end * chunk_tokens, state.prompt, prefix.pages[:first], keep)
