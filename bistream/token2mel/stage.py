"""The flow stage: new speech tokens of many sessions in, their new mel frames out.

Called by ``token2wav.Token2Wav`` from one thread; no method may be called from two threads at once.

A hop computes the part of a sequence after its last stored chunk and keeps the state of every chunk that became
complete (all its tokens and their lookahead known). Frames of an incomplete last chunk are handed out and computed again
in the next hop; the reference, which computes the whole prefix in each call, hands out the same frames.

Once admitted, a session never fails for lack of state memory. Where the pool has no page beyond a session's reservation,
the session forgets its oldest chunk of speech (never the prompt, never below the reservation) and keeps the newest in its
place: recomputing everything instead would slow down all sessions just when the server is full. Sessions beyond their
reservation do the same when a new session needs pages: none is refused for memory that was only lent.

``left_context_chunks`` limits attention to that many chunks before a frame's own, in encoder and estimator alike; state
and time per hop are then constant.

A session may be longer than ``flow_context_s``: where the next hop would not fit, it forgets the older half of its speech
(``planning.HopPlanner.reanchor``) and goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bistream.checkpoints.config import CheckpointConfig
from bistream.config import RuntimeConfig
from bistream.errors import BistreamError, EngineError, InvalidInputError
from bistream.gpu.device import resolve_device
from bistream.gpu.steps import Steps, finish
from bistream.processes.start_phases import phase
from bistream.token2mel.batching import Span
from bistream.token2mel.checks import MAX_FRAMES, check_length, check_prompt, check_tokens, fingerprint, too_long
from bistream.token2mel.factory import flow_page_bytes, flow_tier, load_network, make_pages, make_runner, resolve_dtype
from bistream.token2mel.flow import FlowModel
from bistream.token2mel.page_pool import PagePool
from bistream.token2mel.pages import memory_bytes
from bistream.token2mel.planning import HopPlanner, Work
from bistream.token2mel.prefixes import PIECE_CHUNKS_ON_CPU, incomplete, needs_preparation, next_span
from bistream.token2mel.solving import SpanBatch
from bistream.token2mel.state import FlowState, FlowStatus
from bistream.token2mel.state_budget import AUTO_SESSION_S, available_bytes, language_model_bytes, reserved_pages, state_pages
from bistream.types import VoicePrompt

RESERVE_TOKENS = 250  # state reserved for every session at open, in addition to its prompt: 10 s


@dataclass(frozen=True)
class FlowHop:
    """token_ids: new speech tokens only (raw codes). After the final hop a session takes no more."""

    state: FlowState
    token_ids: Sequence[int]
    finalize: bool


@dataclass
class FlowHops:
    """Hops in progress: ``FlowStage.begin``. results: of each, complete when no step is left. work: what the solver's spans are for."""

    stage: FlowStage
    states: list[FlowState]
    results: list[Tensor | BistreamError]
    work: list[Work]
    spans: SpanBatch

    @property
    def steps_left(self) -> int:
        return self.spans.steps_left

    def step(self) -> None:
        """One step of the solver. With the last one every state is as after ``FlowStage.hop``."""
        self.spans.step()
        if not self.steps_left:
            self.stage.end(self)

    def finish(self) -> list[Tensor | BistreamError]:
        """All that is left, without a pause."""
        while self.steps_left:
            self.step()
        return self.results

    def abandon(self, sentence: str) -> None:
        """Computing failed beyond repair: fail the sessions that are still in progress."""
        for item in self.work:
            if item.state.is_computing:
                item.state.is_computing = False
                item.state.fail(sentence)


class FlowStage:
    """session_s: audio per session that the automatic budget has room for; None: ``AUTO_SESSION_S``. network: None: that of the model
    directory."""

    def __init__(
        self,
        config: RuntimeConfig,
        checkpoint: CheckpointConfig,
        *,
        reserve_tokens: int = RESERVE_TOKENS,
        session_s: float | None = None,
        network: FlowModel | None = None,
    ) -> None:
        self.config = checkpoint.flow
        self.device = resolve_device(config.device)
        self.dtype = resolve_dtype(config.dtype, self.device)
        with phase("flow: weights read"):
            network = network or load_network(config.model_dir, self.config, self.device, self.dtype)
        self.chunk_tokens = self.config.chunk_tokens
        longest = -(-MAX_FRAMES // (self.config.token_mel_ratio * self.chunk_tokens))  # chunks of a session: a larger bound has no effect
        self.left_context_chunks = config.left_context_chunks if config.left_context_chunks < longest else 0
        self.max_tokens = int(config.flow_context_s * self.config.tokens_per_second)  # of a session at a time, prompt included
        choice = flow_tier(config, self.config, self.device, self.dtype)
        self.tiers = (choice,)
        self.page_bytes = flow_page_bytes(self.config, self.dtype)
        self.page_s = page_s = self.chunk_tokens / self.config.tokens_per_second
        claimed = language_model_bytes(checkpoint.language_model, config.shared_kv_cache_tokens) if self.device.type == "cuda" else 0
        available = available_bytes(*memory_bytes(self.device), claimed)
        # Bounded context needs the stored chunks that a hop reads, as many new ones while it runs, and as many of the prompt.
        session_s = max(session_s or AUTO_SESSION_S, 3 * self.left_context_chunks * page_s)
        total = state_pages(config.flow_state_mb, self.page_bytes, page_s, config.max_sessions, available, session_s)
        self.pages = make_pages(self.config, total, self.dtype, self.device)
        self.pool = PagePool(self.pages.total)
        with phase(f"flow: {choice.tier.value}"):
            self.runner = make_runner(choice.tier, config, network, self.pages)
        self.prefix_piece_chunks = PIECE_CHUNKS_ON_CPU if self.device.type == "cpu" and not self.left_context_chunks else None
        self.planner = HopPlanner(self.config, self.pool, self.left_context_chunks)
        self._states: list[FlowState] = []  # those open when the last session was admitted
        self.reserve_chunks = 2 * self.left_context_chunks or -(-reserve_tokens // self.chunk_tokens)

    @property
    def chunks_join(self) -> bool:
        """Whether frames of complete chunks do not depend on how many of them a hop has, until a session outgrows ``max_tokens`` and begins
        anew with a hop. A bounded left context is counted from the hop."""
        return not self.left_context_chunks

    def open(self, prompt: VoicePrompt, expected_speech_s: float | None = None) -> FlowState:
        """Admit a session. ``close()`` of the result frees it.

        expected_speech_s: for less than usual less is reserved, as ``state_budget.reserved_pages`` says; None: nobody knows how much it
        will be. With bounded left context it makes no difference: what a session needs does not depend on its length then.
        Raises ``InvalidInputError`` for a prompt of wrong shape or range, ``BusyError`` when its state cannot be guaranteed.
        """
        tokens = check_prompt(prompt, self.config)
        if len(tokens) >= self.max_tokens:
            raise too_long(len(tokens), self.max_tokens, self.config)
        complete = max(0, len(tokens) - self.config.pre_lookahead_len) // self.chunk_tokens
        stored = min(complete, self.left_context_chunks or complete)
        if stored > self.pool.total:
            raise InvalidInputError("The reference recording is longer than this server has flow state for; use a shorter one.")
        speech_s = None if self.left_context_chunks else expected_speech_s
        reserve = min(reserved_pages(speech_s, self.reserve_chunks, self.page_s), self.pool.total - stored)
        key = fingerprint(prompt)
        self.planner.reclaim(self.pool.shortage(reserve, key, stored), self._states)
        account = self.pool.open(reserve, key, stored)
        state = FlowState(prompt, account, self.pool, tokens, emitted_frames=len(tokens) * self.config.token_mel_ratio)
        if account.prefix is not None:
            state.committed = complete * self.chunk_tokens
            state.pages = list(account.prefix.pages)
        self._states = [*(other for other in self._states if not other.account.closed), state]
        return state

    def hop(self, hops: Sequence[FlowHop]) -> list[Tensor | BistreamError]:
        """Mel of each hop, float32 [bins, T_new] (T_new may be 0), or the error of that hop alone.

        Errors: ``InvalidInputError`` for tokens out of range, a session that is finished or closed, or a hop that is too long for
        ``flow_context_s`` (the session continues without these tokens); ``EngineError`` when computing failed (the session is lost).
        Several hops of one session in one call are computed in order.
        """
        results: list[Tensor | BistreamError] = [torch.empty(0)] * len(hops)
        waiting = list(range(len(hops)))
        while waiting:
            first = {id(hops[index].state): index for index in reversed(waiting)}  # one hop of each session
            indices = sorted(first.values())
            for index, result in zip(indices, self.begin([hops[index] for index in indices]).finish(), strict=True):
                results[index] = result
            waiting = [index for index in waiting if first[id(hops[index].state)] != index]
        return results

    def begin(self, hops: Sequence[FlowHop]) -> FlowHops:
        """``hop`` in steps, each session once; between them others may be begun, computed, opened and closed, but not these.

        Computes what is missing of the voices' shared state, and nothing else yet.
        """
        results: list[Tensor | BistreamError] = [torch.empty(0)] * len(hops)
        accepted = []
        for index, hop in enumerate(hops):
            try:
                self._accept(hop)
                accepted.append(index)
            except BistreamError as error:
                results[index] = error
        self._compute_prefixes([hops[index].state for index in accepted])
        work: list[Work] = []
        for index in accepted:
            state = hops[index].state
            if state.failure is not None:
                results[index] = EngineError(state.failure)
            elif (planned := self.planner.plan(index, state)) is not None:
                work.append(planned)
            else:
                results[index] = torch.empty(self.config.output_size, 0, device=self.device)
        begun = FlowHops(self, [hops[index].state for index in accepted], results, work, self.runner.begin([item.span for item in work]))
        for item in work:
            item.state.is_computing = True
        if not begun.steps_left:
            self.end(begun)
        return begun

    def end(self, hops: FlowHops) -> None:
        """Their last step is done: commit what was computed."""
        for item, mel in zip(hops.work, hops.spans.results, strict=True):
            item.state.is_computing = False
            if isinstance(mel, EngineError):
                item.state.fail(mel.sentence)
                hops.results[item.index] = mel
            else:
                hops.results[item.index] = self.planner.advance(item, mel)
        for state in hops.states:
            if state.status is FlowStatus.FINISHED:
                state.release()

    def synthesize(self, token_ids: Sequence[int], prompt: VoicePrompt) -> Tensor:
        """Offline: all tokens in one call with full attention. Returns float32 [bins, ratio * len(token_ids)]."""
        return finish(self.synthesis(token_ids, prompt))

    def synthesis(self, token_ids: Sequence[int], prompt: VoicePrompt) -> Steps[Tensor]:
        """``synthesize`` in steps, between which hops may run: it neither reads nor keeps state. Raises as ``synthesize``."""
        prompt_tokens = check_prompt(prompt, self.config)
        new = check_tokens(token_ids, self.config)
        tokens = prompt_tokens + new
        check_length(len(tokens), self.config)
        if not new:
            return torch.empty(self.config.output_size, 0, device=self.device)
        mel = yield from self.runner.whole_utterance(Span(tokens, 0, len(tokens), prompt, streaming=False))
        return mel[:, len(prompt_tokens) * self.config.token_mel_ratio :]

    def needs_preparation(self, state: FlowState) -> bool:
        """Whether a hop, which computes what is missing of a new voice's shared state, would take long. Never on a GPU."""
        return needs_preparation(state, self.chunk_tokens, self.prefix_piece_chunks)

    def prepare(self, state: FlowState) -> None:
        """Compute the next piece of a new voice's shared state. Where that fails, so does the session's next hop."""
        self._compute_prefixes([state], self.prefix_piece_chunks)

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

    def _accept(self, hop: FlowHop) -> None:
        """Check a hop and add its tokens to the session."""
        state = hop.state
        assert not state.is_computing, "a session's hops are computed one after the other"
        if state.failure is not None:
            raise EngineError(state.failure)
        if state.status is not FlowStatus.OPEN:
            raise InvalidInputError("This session had its final hop or was closed; open a new session.")
        tokens = check_tokens(hop.token_ids, self.config)
        if len(state.tokens) + len(tokens) > self.max_tokens:
            self.planner.reanchor(state, self.max_tokens - len(tokens))
        if (known := len(state.tokens) + len(tokens)) > self.max_tokens:
            raise too_long(known, self.max_tokens, self.config)
        state.tokens.extend(tokens)
        if hop.finalize:
            state.status = FlowStatus.FINISHED

    def _compute_prefixes(self, states: Sequence[FlowState], max_chunks: int | None = None) -> None:
        """Compute the shared prompt state of new voices, at most ``max_chunks`` of each; where that fails, so do their sessions."""
        missing = incomplete(states)
        spans = [next_span(prefix, state, self.chunk_tokens, max_chunks) for prefix, state in missing]
        for (prefix, state), span, mel in zip(missing, spans, self.runner.compute(spans), strict=True):
            if isinstance(mel, Tensor):
                prefix.computed = span.end // self.chunk_tokens
                prefix.ready = span.end == state.committed
                continue
            for other in states:
                if other.account.prefix is prefix:
                    other.fail(mel.sentence)
