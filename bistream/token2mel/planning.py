"""Plans a hop of one session: the span to compute, and the pages that keep its state. Integers but for the mel that is cut out.

Called by ``stage.FlowStage``. Pages of a session that is being computed stay with it until it has ended.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from bistream.checkpoints.config import FlowConfig
from bistream.token2mel.batching import Span
from bistream.token2mel.page_pool import SCRATCH_PAGE, PagePool
from bistream.token2mel.state import FlowState, FlowStatus

_log = logging.getLogger(__name__)
_WARNING_INTERVAL_S = 60.0


@dataclass(frozen=True)
class Work:
    """One hop to compute; the ``granted`` pages keep the state of its last complete chunks."""

    index: int
    state: FlowState
    span: Span
    granted: tuple[int, ...]
    committed: int  # tokens, after the call


class HopPlanner:
    def __init__(self, config: FlowConfig, pool: PagePool, left_context_chunks: int) -> None:
        self.config = config
        self.pool = pool
        self.chunk_tokens = config.chunk_tokens
        self.left_context_chunks = left_context_chunks
        self._warned_at = -math.inf

    def plan(self, index: int, state: FlowState) -> Work | None:
        """The span to compute for a session and the pages that keep its state; None when no frame is due."""
        final = state.status is FlowStatus.FINISHED
        known = len(state.tokens)
        end = known if final else known - self.config.pre_lookahead_len
        if end * self.config.token_mel_ratio <= state.emitted_frames:
            return None
        keep, granted, committed = ((), (), state.committed) if final else self._take_pages(state, end)
        span = Span(state.tokens, state.committed, end, state.prompt, tuple(state.pages), keep)
        return Work(index, state, span, granted, committed)

    def _take_pages(self, state: FlowState, end: int) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        """Pages for the chunks that [committed, end) completes: (page per chunk, pages taken, committed afterwards)."""
        complete = (end - state.committed) // self.chunk_tokens
        wanted = min(complete, self.left_context_chunks or complete)  # older chunks are out of reach of any later one
        granted = tuple(self.pool.take(state.account, wanted))
        if self.left_context_chunks and len(granted) < wanted:
            self.pool.give_back(state.account, granted)
            return (), (), state.committed
        if self.left_context_chunks:
            return (SCRATCH_PAGE,) * (complete - wanted) + granted, granted, state.committed + complete * self.chunk_tokens
        granted += self._forget(state, wanted - len(granted))
        return granted, granted, state.committed + len(granted) * self.chunk_tokens

    def _forget(self, state: FlowState, count: int) -> tuple[int, ...]:
        """Take up to ``count`` pages from the session's oldest speech, which later hops then do not read."""
        if not count:
            return ()
        first = len(state.account.prefix.pages) if state.account.prefix else 0
        forgotten = tuple(state.pages[first : first + count])
        if time.monotonic() - self._warned_at > _WARNING_INTERVAL_S:
            self._warned_at = time.monotonic()
            _log.warning("flow state is full: sessions beyond their reservation forget their oldest speech; raise flow_state_mb")
        state.has_forgotten = True
        del state.pages[first : first + count]
        return forgotten

    def reclaim(self, count: int, states: Sequence[FlowState]) -> None:
        """Take ``count`` lent pages back, from the largest borrowers first; none if there are fewer, or if they are in use."""
        idle = [state for state in states if not state.is_computing]
        if count <= 0 or count > sum(state.account.lent for state in idle):
            return
        for _ in range(count):
            state = max(idle, key=lambda state: state.account.lent)
            self.pool.give_back(state.account, self._forget(state, 1))

    def reanchor(self, state: FlowState, max_tokens: int) -> None:
        """Forget the older half of the session's speech, or more, until at most ``max_tokens`` tokens are left; all that is stored at most.

        What stays is the voice and the newest speech, with the state that it was computed with: so nothing begins anew, there is no joint
        in the mel, and later frames only attend to less. (Where a hop is nearly as long as the context, all speech must go; then there is
        one.) Whole chunks go, and all positions after them move to the left by as much: the
        noise of the solver, which ends after 300 s, is used again from there. Decided by numbers of tokens alone.
        """
        size, ratio = self.chunk_tokens, self.config.token_mel_ratio
        prompt = len(state.prompt.speech_tokens)
        first = -(-prompt // size)  # the first chunk of speech alone
        done = state.committed // size
        needed = -(-(len(state.tokens) - max_tokens) // size)
        count = min(max(needed, (done - first) // 2), done - first)
        if needed <= 0 or count <= 0:
            return
        self._forget_chunks(state, first, count)
        del state.tokens[first * size : (first + count) * size]
        state.emitted_frames -= count * size * ratio
        state.committed -= count * size

    def _forget_chunks(self, state: FlowState, first: int, count: int) -> None:
        """Give back the pages of the chunks [first, first + count), where they are still there."""
        if self.left_context_chunks:  # the pages are those of the last chunks, wherever these stand: as many stay as there are chunks
            self._drop_oldest(state, state.committed // self.chunk_tokens - count)
            return
        missing = state.committed // self.chunk_tokens - len(state.pages)  # forgotten before, right after the prefix
        prefix = len(state.account.prefix.pages) if state.account.prefix else 0
        begin = max(prefix, first - missing)
        end = max(prefix, first + count - missing)
        given_back = state.pages[begin:end]
        del state.pages[begin:end]
        self.pool.give_back(state.account, given_back)

    def advance(self, item: Work, mel: Tensor) -> Tensor:
        """Commit what the span computed and cut out the frames that were not handed out yet."""
        state, ratio = item.state, self.config.token_mel_ratio
        new = mel[:, state.emitted_frames - item.span.start * ratio :]
        state.emitted_frames = item.span.end * ratio
        if item.granted:
            state.committed = item.committed
            state.pages.extend(item.granted)
            if self.left_context_chunks:
                self._drop_oldest(state, self.left_context_chunks)
        return new

    def _drop_oldest(self, state: FlowState, most: int) -> None:
        """Keep the last ``most`` pages."""
        first = max(0, len(state.pages) - most)
        dropped, state.pages = state.pages[:first], state.pages[first:]
        own = set(state.account.pages)
        self.pool.give_back(state.account, [page for page in dropped if page in own])
