"""Runs spans of many sequences through the network: groups them, pads each group, and isolates failures.

Called by ``stage.FlowStage``. Every shape that reaches the network follows from ``batching.BatchShape``; with buckets there
are few of them, because every new shape is expensive on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from bistream.errors import EngineError
from bistream.gpu.steps import Steps
from bistream.token2mel.batching import Buckets, Span, batch_shape, group_spans, pack, without_context
from bistream.token2mel.flow import FlowBatch, FlowModel
from bistream.token2mel.flow_matching import SolverState
from bistream.token2mel.memory import SolverMemory
from bistream.token2mel.paged_memory import PageTables, StatePages
from bistream.token2mel.solving import SpanBatch, SpanGroup

NOT_FINITE = "The speech contains NaN or infinity; check the reference recording of this session."
# Attention scores per head that one step of a whole utterance computes: bounds its time (about 50 ms at full size on two CPU cores).
MAX_SCORES = {"cpu": 2**20, "cuda": 2**24}


class FlowRunner:
    """buckets: None pads a group to its own longest span only."""

    network: FlowModel
    pages: StatePages

    def __init__(self, network: FlowModel, pages: StatePages, left_context_chunks: int, buckets: Buckets | None) -> None:
        self.network = network
        self.pages = pages
        self.left_context_chunks = left_context_chunks
        self.buckets = buckets

    def compute(self, spans: Sequence[Span]) -> list[Tensor | EngineError]:
        """Mel of each span, float32 [bins, ratio * length], or its error.

        NaN or infinity fails its span alone (rows of a batch do not mix); an exception fails its group.
        """
        return self.begin(spans).finish()

    def begin(self, spans: Sequence[Span]) -> SpanBatch:
        """``compute`` in steps, between which other calls may run. Computes nothing yet."""
        return SpanBatch.of(len(spans), self.plain_groups(spans))

    def plain_groups(self, spans: Sequence[Span]) -> list[tuple[Sequence[int], SpanGroup]]:
        """Groups on the plain network."""
        groups = group_spans(spans, self.network.config.chunk_tokens)
        return [(group, _PlainGroup(self, [spans[index] for index in group])) for group in groups]

    def from_the_start(self, spans: Sequence[Span]) -> list[tuple[Sequence[int], SpanGroup]]:
        """Groups on the plain network that read no stored state: for tiers that store it in a form that this network cannot read."""
        config = self.network.config
        whole = [without_context(span, config.chunk_tokens) for span in spans]
        skipped = [span.start * config.token_mel_ratio for span in spans]
        return [
            (group, _PlainGroup(self, [whole[index] for index in group], [skipped[index] for index in group]))
            for group in group_spans(whole, config.chunk_tokens)
        ]

    def whole_utterance(self, span: Span) -> Steps[Tensor]:
        """Mel of one span with full attention from the start of its sequence, in steps, on the plain network in every tier.

        Returns float32 [bins, ratio * length]; raises ``EngineError`` for NaN or infinity.
        """
        batch, _ = self.padded_batch([span], None)
        mel = yield from self.network.whole_utterance(batch, MAX_SCORES[self.network.device.type])
        if not bool(torch.isfinite(mel).all()):
            raise EngineError(NOT_FINITE)
        return mel[0].T

    def padded_batch(self, spans: Sequence[Span], buckets: Buckets | None) -> tuple[FlowBatch, SolverMemory]:
        """Padded arrays of a group on the device, and the memory over its pages."""
        config = self.network.config
        shape = batch_shape(spans, config.chunk_tokens, buckets)
        arrays = pack(spans, shape, lookahead=config.pre_lookahead_len, ratio=config.token_mel_ratio, mel_bins=config.output_size)
        batch = FlowBatch(
            token_ids=self._to_device(arrays.token_ids),
            present=self._to_device(arrays.present),
            starts=self._to_device(arrays.starts),
            lengths=self._to_device(arrays.lengths),
            context_chunks=self._to_device(arrays.context_chunks),
            prompt_mel=self._to_device(arrays.prompt_mel),
            speaker=self._to_device(arrays.speaker),
            table_chunks=shape.table_chunks,
            left_context_chunks=self.left_context_chunks,
            streaming=spans[0].streaming,
        )
        memory = self.network.blank_memory()
        if shape.table_chunks + shape.keep_chunks:
            tables = PageTables(self._to_device(arrays.context), self._to_device(arrays.last), self._to_device(arrays.keep))
            memory = self.pages.memory(tables)
        return batch, memory

    def _to_device(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self.network.device, non_blocking=True)


class _PlainGroup:
    """A ``SpanGroup`` on the plain network, whose state is tensors of its own. skipped: of each span, first frames that are not wanted."""

    def __init__(self, runner: FlowRunner, spans: Sequence[Span], skipped: Sequence[int] | None = None) -> None:
        self._runner = runner
        self._spans = spans
        self._skipped = skipped or [0] * len(spans)
        self._state: SolverState | None = None  # from the first step on

    @property
    def steps_left(self) -> int:
        steps = self._runner.network.config.n_timesteps
        return steps if self._state is None else steps - self._state.step

    def step(self) -> None:
        runner = self._runner
        if self._state is None:
            self._state = runner.network.begin(*runner.padded_batch(self._spans, runner.buckets))
        runner.network.advance(self._state)

    def results(self) -> list[Tensor | EngineError]:
        assert self._state is not None
        ratio, mel = self._runner.network.config.token_mel_ratio, self._state.x
        rows = [mel[row, : span.length * ratio].T for row, span in enumerate(self._spans)]
        finite = torch.stack([torch.isfinite(row).all() for row in rows]).tolist()
        return [
            row[:, skipped:] if is_finite else EngineError(NOT_FINITE)
            for row, skipped, is_finite in zip(rows, self._skipped, finite, strict=True)
        ]

    def abandon(self) -> None:
        self._state = None
