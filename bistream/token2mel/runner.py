"""Runs spans of many sequences through the network: groups them, pads each group, and isolates failures.

Called by ``stage.FlowStage``. Every shape that reaches the network follows from ``batching.BatchShape``; with buckets there
are few of them, because every new shape is expensive on a GPU.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from bistream.errors import EngineError
from bistream.token2mel.batching import Buckets, Span, batch_shape, group_spans, pack, without_context
from bistream.token2mel.flow import FlowBatch, FlowNetwork
from bistream.token2mel.memory import BlankMemory, FlowMemory
from bistream.token2mel.pages import FlowPages, PagedMemory, PageTables

_log = logging.getLogger(__name__)

NOT_FINITE = "The speech contains NaN or infinity; check the reference recording of this session."
FAILED = "Computing the speech failed; open a new session and try again."


class FlowRunner:
    """pages: None where no state is kept. buckets: None pads a group to its own longest span only."""

    def __init__(self, network: FlowNetwork, pages: FlowPages | None, left_context_chunks: int, buckets: Buckets | None) -> None:
        self.network = network
        self.pages = pages
        self.left_context_chunks = left_context_chunks
        self.buckets = buckets

    def compute(self, spans: Sequence[Span]) -> list[Tensor | EngineError]:
        """Mel of each span, float32 [bins, ratio * length], or its error.

        NaN or infinity fails its span alone (rows of a batch do not mix); an exception fails its group.
        """
        results: list[Tensor | EngineError] = [EngineError(FAILED) for _ in spans]
        for group in group_spans(spans, self.network.config.encoder.static_chunk_size):
            try:
                mels = self._compute_group([spans[index] for index in group])
                finite = torch.stack([torch.isfinite(mel).all() for mel in mels]).tolist()
            except Exception:
                _log.exception("the flow failed on %d sequences", len(group))
                continue
            for index, mel, is_finite in zip(group, mels, finite, strict=True):
                results[index] = mel if is_finite else EngineError(NOT_FINITE)
        return results

    def compute_from_the_start(self, spans: Sequence[Span]) -> list[Tensor | EngineError]:
        """Like ``compute`` without reading stored state: for tiers that store it in a form that the plain network cannot read."""
        config = self.network.config
        whole = [without_context(span, config.encoder.static_chunk_size) for span in spans]
        return [
            result if isinstance(result, EngineError) else result[:, span.start * config.token_mel_ratio :]
            for span, result in zip(spans, FlowRunner.compute(self, whole), strict=True)
        ]

    def _compute_group(self, spans: Sequence[Span]) -> list[Tensor]:
        mel = self.network(*self._batch(spans))
        ratio = self.network.config.token_mel_ratio
        return [mel[row, : span.length * ratio].T for row, span in enumerate(spans)]

    def _batch(self, spans: Sequence[Span]) -> tuple[FlowBatch, FlowMemory]:
        """Padded arrays of a group on the device, and the memory over its pages."""
        config = self.network.config
        shape = batch_shape(spans, config.encoder.static_chunk_size, self.buckets)
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
        memory: FlowMemory = BlankMemory()
        if self.pages is not None and shape.table_chunks + shape.keep_chunks:
            tables = PageTables(self._to_device(arrays.context), self._to_device(arrays.last), self._to_device(arrays.keep))
            memory = PagedMemory(self.pages, tables)
        return batch, memory

    def _to_device(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self.network.device, non_blocking=True)
