"""The flow stage: new speech tokens of many sessions in, their new mel frames out.

Called by ``token2wav.Token2Wav`` from one thread; no method may be called from two threads at once.

A hop computes the part of a sequence behind its last stored chunk and keeps the state of every chunk that became
complete (all its tokens and their lookahead known). Frames of an incomplete last chunk are handed out and computed again
in the next hop; the reference, which computes the whole prefix in each call, hands out the same frames. Without stored
state (``incremental=False``, or where the pool has no page beyond a session's reservation) the same code computes from the
start of the prompt: slower, with the same result. So a session never fails for lack of state memory once it was admitted.

``left_context_chunks`` limits attention to that many chunks left of a frame's own, in encoder and estimator alike; state
and time per hop are then constant.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bistream.config import CheckpointConfig, RuntimeConfig
from bistream.errors import BistreamError, ConfigError, EngineError, InvalidInputError
from bistream.token2mel.batching import Span, group_spans, pack
from bistream.token2mel.checks import check_length, check_prompt, check_tokens, fingerprint
from bistream.token2mel.flow import FlowBatch
from bistream.token2mel.memory import BlankMemory, FlowMemory
from bistream.token2mel.page_pool import SCRATCH_PAGE, PagePool, Prefix
from bistream.token2mel.pages import FlowPages, PagedMemory, PageTables, page_bytes
from bistream.token2mel.state import FlowState, FlowStatus
from bistream.token2mel.weights import load_network
from bistream.types import VoicePrompt

_log = logging.getLogger(__name__)

RESERVE_TOKENS = 250  # state that every session is promised at open, beyond its prompt: 10 s


@dataclass(frozen=True)
class FlowHop:
    """token_ids: new speech tokens only (raw codes). After the final hop a session takes no more."""

    state: FlowState
    token_ids: Sequence[int]
    finalize: bool


@dataclass(frozen=True)
class _Work:
    """One hop on its way through the network: ``granted`` pages keep the state of its last complete chunks."""

    index: int
    state: FlowState
    span: Span
    granted: tuple[int, ...]
    committed: int  # after the call


class FlowStage:
    """``incremental=False`` keeps no state: every hop computes its whole prefix (reference for tests and benchmarks)."""

    def __init__(
        self, config: RuntimeConfig, checkpoint: CheckpointConfig, *, incremental: bool = True, reserve_tokens: int = RESERVE_TOKENS
    ) -> None:
        self.config = checkpoint.flow
        self.device = _resolve_device(config.device)
        self.dtype = _resolve_dtype(config.dtype, self.device)
        self.network = load_network(config.model_dir, self.config, self.device, self.dtype)
        self.chunk_tokens = self.config.encoder.static_chunk_size
        self.left_context_chunks = config.left_context_chunks
        self.reference_final = config.final_mode == "reference"
        self.page_bytes = page_bytes(self.config, self.dtype)
        total = config.flow_state_mb * 2**20 // self.page_bytes if incremental else 0
        if incremental and total < 1:
            needed = -(-self.page_bytes // 2**20)
            raise ConfigError(f"Parameter 'flow_state_mb' is {config.flow_state_mb}; one second of audio needs {needed}, set it higher.")
        self.pool = PagePool(total)
        self.pages = FlowPages(self.config, total, self.dtype, self.device) if incremental else None
        # Bounded context: the stored chunks a hop reads, and as many new ones while it runs.
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
        account = self.pool.open(reserve, fingerprint(prompt), stored)
        state = FlowState(prompt, account, self.pool, tokens, emitted_frames=len(tokens) * self.config.token_mel_ratio)
        if account.prefix is not None:
            state.committed = complete * self.chunk_tokens
            state.pages = list(account.prefix.pages)
        return state

    def hop(self, hops: Sequence[FlowHop]) -> list[Tensor | BistreamError]:
        """Mel of each hop, float32 [bins, T_new] (T_new may be 0), or the error of that hop alone.

        Errors: ``InvalidInputError`` for tokens out of range, a session that is finished or closed, or one longer than 300 s
        (the session goes on without these tokens); ``EngineError`` when computing failed (the session is lost).
        Several hops of one session in one call are taken in order.
        """
        results: list[Tensor | BistreamError] = [EngineError("The hop was not computed.")] * len(hops)
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
        mel = self._compute([span])[0]
        if not bool(torch.isfinite(mel).all()):
            raise _not_finite()
        return mel[:, len(prompt_tokens) * self.config.token_mel_ratio :]

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
            if state.status is FlowStatus.FAILED:
                results[index] = _not_finite()
                continue
            planned = self._plan(index, state)
            if planned is None:
                results[index] = torch.empty(self.config.output_size, 0, device=self.device)
            else:
                work.append(planned)
        for group in group_spans([item.span for item in work], self.config.token_mel_ratio):
            self._run([work[position] for position in group], results)
        for index in accepted:
            if hops[index].state.status is FlowStatus.FINISHED:
                hops[index].state.release()

    def _accept(self, hop: FlowHop) -> None:
        """Check a hop and add its tokens to the session."""
        state = hop.state
        if state.status is FlowStatus.FAILED:
            raise EngineError("Computing this session failed before; open a new session.")
        if state.status is not FlowStatus.OPEN:
            raise InvalidInputError("This session had its final hop or was closed; open a new session.")
        tokens = check_tokens(hop.token_ids, self.config)
        check_length(len(state.tokens) + len(tokens), self.config)
        state.tokens.extend(tokens)
        if hop.finalize:
            state.status = FlowStatus.FINISHED

    def _plan(self, index: int, state: FlowState) -> _Work | None:
        """What to compute for a session now and which of it to keep; None when no frame is due."""
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
        return granted, granted, state.committed + len(granted) * self.chunk_tokens

    def _run(self, work: Sequence[_Work], results: list[Tensor | BistreamError]) -> None:
        """Compute a group; a failure of the device fails the group, numbers that are not finite fail their session."""
        try:
            mels = self._compute([item.span for item in work])
            finite = torch.stack([torch.isfinite(mel).all() for mel in mels]).tolist()
        except Exception:
            _log.exception("the flow failed on %d sessions", len(work))
            for item in work:
                item.state.fail()
                results[item.index] = EngineError("Computing the speech failed; open a new session and try again.")
            return
        for item, mel, is_finite in zip(work, mels, finite, strict=True):
            if is_finite:
                results[item.index] = self._advance(item, mel)
            else:
                item.state.fail()
                results[item.index] = _not_finite()

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
        """Compute the shared prompt state of voices that are new; their sessions fail where it is not finite."""
        missing: dict[int, tuple[Prefix, FlowState]] = {}
        for state in states:
            prefix = state.account.prefix
            if prefix is not None and not prefix.ready and state.status is not FlowStatus.FAILED:
                missing.setdefault(id(prefix), (prefix, state))
        for prefix, state in missing.values():
            skipped = state.committed // self.chunk_tokens - len(prefix.pages)
            keep = (SCRATCH_PAGE,) * skipped + prefix.pages
            span = Span(state.tokens, 0, state.committed, state.prompt, keep_pages=keep)
            try:
                prefix.ready = bool(torch.isfinite(self._compute([span])[0]).all())
            except Exception:
                _log.exception("the flow failed on a voice prompt")
            if not prefix.ready:
                self.pool.discard_prefix(prefix)
                for other in states:
                    if other.account.prefix is prefix:
                        other.fail()

    def _compute(self, spans: Sequence[Span]) -> list[Tensor]:
        """Run the network on a group of spans: float32 [bins, ratio * length] each."""
        ratio = self.config.token_mel_ratio
        arrays = pack(
            spans,
            chunk_tokens=self.chunk_tokens,
            lookahead=self.config.pre_lookahead_len,
            ratio=ratio,
            mel_bins=self.config.output_size,
        )
        batch = FlowBatch(
            token_ids=self._to_device(arrays.token_ids),
            present=self._to_device(arrays.present),
            starts=self._to_device(arrays.starts),
            lengths=self._to_device(arrays.lengths),
            context_chunks=self._to_device(arrays.context_chunks),
            prompt_mel=self._to_device(arrays.prompt_mel),
            speaker=self._to_device(arrays.speaker),
            table_chunks=arrays.context.shape[1],
            left_context_chunks=self.left_context_chunks,
            streaming=spans[0].streaming,
        )
        memory: FlowMemory = BlankMemory()
        if self.pages is not None and arrays.context.shape[1] + arrays.keep.shape[1]:
            tables = PageTables(self._to_device(arrays.context), self._to_device(arrays.last), self._to_device(arrays.keep))
            memory = PagedMemory(self.pages, tables)
        mel = self.network(batch, memory)
        return [mel[row, : span.length * ratio].T for row, span in enumerate(spans)]

    def _to_device(self, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)


def _not_finite() -> EngineError:
    return EngineError("The speech of this session came out as numbers that are not finite; check its reference recording.")


def _resolve_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


def _resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """``auto``: float32 on the CPU, float16 elsewhere (the precision upstream serves the flow in)."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.float16
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]
