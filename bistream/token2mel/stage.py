"""The flow stage: new speech tokens of many sessions in, their new mel frames out.

Called by ``token2wav.Token2Wav`` from one thread; no method may be called from two threads at once.

A hop computes the part of a sequence after its last stored chunk and keeps the state of every chunk that became
complete (all its tokens and their lookahead known). Frames of an incomplete last chunk are handed out and computed again
in the next hop; the reference, which computes the whole prefix in each call, hands out the same frames. Without stored
state (``incremental=False``) the same code computes from the start of the prompt: slower, with the same result.

Once admitted, a session never fails for lack of state memory. Where the pool has no page beyond a session's reservation,
the session forgets its oldest chunk of speech (never the prompt, never below the reservation) and keeps the newest in its
place: recomputing everything instead would slow down all sessions just when the server is full. Sessions beyond their
reservation do the same when a new session needs pages: none is refused for memory that was only lent.

``left_context_chunks`` limits attention to that many chunks before a frame's own, in encoder and estimator alike; state
and time per hop are then constant.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bistream.config import CheckpointConfig, RuntimeConfig
from bistream.device import resolve_device
from bistream.errors import BistreamError, EngineError, InvalidInputError
from bistream.gpu.tier import Tier
from bistream.rates import SPEECH_TOKENS_PER_SECOND
from bistream.token2mel.batching import Span
from bistream.token2mel.checks import MAX_SECONDS, check_length, check_prompt, check_tokens, fingerprint
from bistream.token2mel.factory import flow_tier, make_pages, make_runner, page_rows
from bistream.token2mel.page_pool import SCRATCH_PAGE, PagePool, Prefix
from bistream.token2mel.pages import free_memory_bytes, page_bytes
from bistream.token2mel.state import FlowState, FlowStatus
from bistream.token2mel.state_budget import AUTO_SESSION_S, state_pages
from bistream.token2mel.weights import load_network
from bistream.types import VoicePrompt

_log = logging.getLogger(__name__)
_WARNING_INTERVAL_S = 60.0
RESERVE_TOKENS = 250  # state reserved for every session at open, in addition to its prompt: 10 s


@dataclass(frozen=True)
class FlowHop:
    """token_ids: new speech tokens only (raw codes). After the final hop a session takes no more."""

    state: FlowState
    token_ids: Sequence[int]
    finalize: bool


@dataclass(frozen=True)
class _Work:
    """One hop to compute; the ``granted`` pages keep the state of its last complete chunks."""

    index: int
    state: FlowState
    span: Span
    granted: tuple[int, ...]
    committed: int  # tokens, after the call


class FlowStage:
    """``incremental=False`` keeps no state: every hop computes its whole prefix (reference for tests and benchmarks)."""

    def __init__(
        self, config: RuntimeConfig, checkpoint: CheckpointConfig, *, incremental: bool = True, reserve_tokens: int = RESERVE_TOKENS
    ) -> None:
        self.config = checkpoint.flow
        self.device = resolve_device(config.device)
        self.dtype = _resolve_dtype(config.dtype, self.device)
        network = load_network(config.model_dir, self.config, self.device, self.dtype)
        self.chunk_tokens = self.config.encoder.static_chunk_size
        longest = -(-MAX_SECONDS * SPEECH_TOKENS_PER_SECOND // self.chunk_tokens)  # chunks of a session: a larger bound has no effect
        self.left_context_chunks = config.left_context_chunks if config.left_context_chunks < longest else 0
        self.reference_final = config.final_mode == "reference"
        choice = flow_tier(config, self.config, self.device, self.dtype) if incremental else None
        self.tiers = () if choice is None else (choice,)
        tier = Tier.PLAIN if choice is None else choice.tier
        self.page_bytes = page_bytes(self.config, self.dtype, page_rows(tier, self.config))
        page_s = self.chunk_tokens / SPEECH_TOKENS_PER_SECOND
        free = free_memory_bytes(self.device)
        # Bounded context needs the stored chunks that a hop reads, as many new ones while it runs, and as many of the prompt.
        session_s = max(AUTO_SESSION_S, 3 * self.left_context_chunks * page_s)
        total = state_pages(config.flow_state_mb, self.page_bytes, page_s, config.max_sessions, free, session_s) if incremental else 0
        self.pages = make_pages(tier, self.config, total, self.dtype, self.device) if incremental else None
        self.pool = PagePool(self.pages.total if self.pages else 0)
        self.runner = make_runner(tier, config, network, self.pages)
        self._states: list[FlowState] = []  # those open when the last session was admitted
        self._warned_at = -math.inf
        self.reserve_chunks = 2 * self.left_context_chunks or -(-reserve_tokens // self.chunk_tokens)

    def open(self, prompt: VoicePrompt) -> FlowState:
        """Admit a session. ``close()`` of the result frees it.

        Raises ``InvalidInputError`` for a prompt of wrong shape or range, ``BusyError`` when its state cannot be guaranteed.
        """
        tokens = check_prompt(prompt, self.config)
        complete = max(0, len(tokens) - self.config.pre_lookahead_len) // self.chunk_tokens if self.pages else 0
        stored = min(complete, self.left_context_chunks or complete)
        if stored > self.pool.total and self.pages:
            raise InvalidInputError("The reference recording is longer than this server has flow state for; use a shorter one.")
        reserve = min(self.reserve_chunks, self.pool.total - stored)
        key = fingerprint(prompt)
        self._reclaim(self.pool.shortage(reserve, key, stored))
        account = self.pool.open(reserve, key, stored)
        state = FlowState(prompt, account, self.pool, tokens, emitted_frames=len(tokens) * self.config.token_mel_ratio)
        if account.prefix is not None:
            state.committed = complete * self.chunk_tokens
            state.pages = list(account.prefix.pages)
        self._states = [*(other for other in self._states if not other.account.closed), state]
        return state

    def hop(self, hops: Sequence[FlowHop]) -> list[Tensor | BistreamError]:
        """Mel of each hop, float32 [bins, T_new] (T_new may be 0), or the error of that hop alone.

        Errors: ``InvalidInputError`` for tokens out of range, a session that is finished or closed, or one longer than 300 s
        (the session continues without these tokens); ``EngineError`` when computing failed (the session is lost).
        Several hops of one session in one call are computed in order.
        """
        results: list[Tensor | BistreamError] = [torch.empty(0)] * len(hops)
        waiting = list(range(len(hops)))
        while waiting:
            first = {id(hops[index].state): index for index in reversed(waiting)}  # one hop of each session
            self._hop_each_once(hops, sorted(first.values()), results)
            waiting = [index for index in waiting if first[id(hops[index].state)] != index]
        return results

    def synthesize(self, token_ids: Sequence[int], prompt: VoicePrompt) -> Tensor:
        """Offline: all tokens in one call with full attention. Returns float32 [bins, ratio * len(token_ids)]."""
        prompt_tokens = check_prompt(prompt, self.config)
        new = check_tokens(token_ids, self.config)
        tokens = prompt_tokens + new
        check_length(len(tokens), self.config)
        if not new:
            return torch.empty(self.config.output_size, 0, device=self.device)
        span = Span(tokens, 0, len(tokens), prompt, streaming=False)
        mel = self.runner.compute([span])[0]
        if isinstance(mel, EngineError):
            raise mel
        return mel[:, len(prompt_tokens) * self.config.token_mel_ratio :]

    def warm(self, prompt: VoicePrompt) -> None:
        """Compute the prompt's shared state ahead of its first session. Kept until its pages are needed. Raises as ``open``."""
        state = self.open(prompt)
        self._compute_prefixes([state])
        state.close()
        if state.failure is not None:
            raise EngineError(state.failure)

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` unless every page of state is free or owned by live sessions and voices."""
        self.pool.check_integrity()

    def _hop_each_once(self, hops: Sequence[FlowHop], indices: Sequence[int], results: list[Tensor | BistreamError]) -> None:
        accepted = []
        for index in indices:
            hop = hops[index]
            try:
                self._accept(hop)
                accepted.append(index)
            except BistreamError as error:
                results[index] = error
        self._compute_prefixes([hops[index].state for index in accepted])
        work: list[_Work] = []
        for index in accepted:
            state = hops[index].state
            if state.failure is not None:
                results[index] = EngineError(state.failure)
                continue
            planned = self._plan(index, state)
            if planned is None:
                results[index] = torch.empty(self.config.output_size, 0, device=self.device)
            else:
                work.append(planned)
        for item, mel in zip(work, self.runner.compute([item.span for item in work]), strict=True):
            if isinstance(mel, EngineError):
                item.state.fail(mel.sentence)
                results[item.index] = mel
            else:
                results[item.index] = self._advance(item, mel)
        for index in accepted:
            if hops[index].state.status is FlowStatus.FINISHED:
                hops[index].state.release()

    def _accept(self, hop: FlowHop) -> None:
        """Check a hop and add its tokens to the session."""
        state = hop.state
        if state.failure is not None:
            raise EngineError(state.failure)
        if state.status is not FlowStatus.OPEN:
            raise InvalidInputError("This session had its final hop or was closed; open a new session.")
        tokens = check_tokens(hop.token_ids, self.config)
        check_length(len(state.tokens) + len(tokens), self.config)
        state.tokens.extend(tokens)
        if hop.finalize:
            state.status = FlowStatus.FINISHED

    def _plan(self, index: int, state: FlowState) -> _Work | None:
        """The span to compute for a session and the pages that keep its state; None when no frame is due."""
        final = state.status is FlowStatus.FINISHED
        known = len(state.tokens)
        end = known if final else known - self.config.pre_lookahead_len
        if end * self.config.token_mel_ratio <= state.emitted_frames:
            return None
        if final and self.reference_final:
            return _Work(index, state, Span(state.tokens, 0, end, state.prompt, streaming=False), (), 0)
        keep, granted, committed = ((), (), state.committed) if final or not self.pages else self._take_pages(state, end)
        span = Span(state.tokens, state.committed, end, state.prompt, tuple(state.pages), keep)
        return _Work(index, state, span, granted, committed)

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

    def _reclaim(self, count: int) -> None:
        """Reclaim ``count`` lent pages, from the largest borrowers first; none if there are fewer."""
        if count <= 0 or count > sum(state.account.lent for state in self._states):
            return
        for _ in range(count):
            state = max(self._states, key=lambda state: state.account.lent)
            self.pool.give_back(state.account, self._forget(state, 1))

    def _advance(self, item: _Work, mel: Tensor) -> Tensor:
        """Commit what the span computed and cut out the frames that were not handed out yet."""
        state, ratio = item.state, self.config.token_mel_ratio
        new = mel[:, state.emitted_frames - item.span.start * ratio :]
        state.emitted_frames = item.span.end * ratio
        if item.granted:
            state.committed = item.committed
            state.pages.extend(item.granted)
            if self.left_context_chunks:
                dropped, state.pages = state.pages[: -self.left_context_chunks], state.pages[-self.left_context_chunks :]
                own = set(state.account.pages)
                self.pool.give_back(state.account, [page for page in dropped if page in own])
        return new

    def _compute_prefixes(self, states: Sequence[FlowState]) -> None:
        """Compute the shared prompt state of new voices; where that fails, so do their sessions."""
        missing: dict[int, tuple[Prefix, Span]] = {}
        for state in states:
            prefix = state.account.prefix
            if prefix is not None and not prefix.ready:
                skipped = state.committed // self.chunk_tokens - len(prefix.pages)
                keep = (SCRATCH_PAGE,) * skipped + prefix.pages
                missing[id(prefix)] = (prefix, Span(state.tokens, 0, state.committed, state.prompt, keep_pages=keep))
        computed = self.runner.compute([span for _, span in missing.values()])
        for (prefix, _), mel in zip(missing.values(), computed, strict=True):
            prefix.ready = isinstance(mel, Tensor)
            if isinstance(mel, EngineError):
                for state in states:
                    if state.account.prefix is prefix:
                        state.fail(mel.sentence)


def _resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """``auto``: float32 on the CPU, float16 elsewhere (the precision upstream serves the flow in)."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.float16
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]
