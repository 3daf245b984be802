"""Runs spans on a CUDA GPU of any kind: the encoder eagerly, the solver as one recorded graph per batch size, or, where batches may stop
between its steps, as one for each step.

The encoder runs on padded batches of few shapes: the matrix library takes milliseconds to choose a kernel for each product of a
new shape, a tenth of a second for a whole encoder. The usual shapes are run once when the graphs are recorded.

A graph reads its batch from fixed addresses, so it serves contexts of any length. A span that no graph can compute (full attention,
or longer than the largest batch) runs on the plain network from the start of its sequence.

Compiled kernels persist in Inductor's cache (``TORCHINDUCTOR_CACHE_DIR``); those of the attention depend on the number of pages.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from bistream.errors import EngineError
from bistream.gpu.recording import GraphRecorder
from bistream.token2mel.batching import MAX_GROUP_TOKENS, Buckets, Span, group_spans
from bistream.token2mel.flow import FlowNetwork, encoder_of
from bistream.token2mel.graphs.batch import Layout, group, output_rows
from bistream.token2mel.graphs.memory import BatchMemory
from bistream.token2mel.graphs.network import PackedEstimator, PackedSolver
from bistream.token2mel.graphs.operations import Operations, compiled_operations, plain_operations
from bistream.token2mel.graphs.weights import pack
from bistream.token2mel.page_pool import ZERO_PAGE
from bistream.token2mel.pages import FlowPages
from bistream.token2mel.runner import NOT_FINITE, FlowRunner
from bistream.token2mel.solving import BufferedGroup, FixedBuffers, SpanBatch, SpanGroup, solver_parts
from bistream.types import VoicePrompt

_log = logging.getLogger(__name__)

ENCODER_BUCKETS = Buckets(token_step=25, chunk_step=8)
WARM_ROWS, WARM_CHUNKS, WARM_CONTEXT = (1, 2, 4, 8, 16, 32, 64), (1, 2), (0, 8, 16)  # sessions; chunks of the new part; stored chunks
TILES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128)  # a tile is a chunk of one session, possibly incomplete


@dataclass
class _Call:
    """Resources of batches of one size. graphs: of each part of the steps; none until recorded, and always where graphs are off."""

    tiles: int
    memory: BatchMemory
    buffers: FixedBuffers = field(default_factory=FixedBuffers)
    graphs: list[torch.cuda.CUDAGraph] = field(default_factory=list)


class GraphFlowRunner(FlowRunner):
    """pages: with ``batch.rows_per_page`` rows each, and with scratch pages. tiles: batch sizes, smallest first.

    operations: None compiles them on a GPU and runs them eagerly elsewhere.
    """

    network: FlowNetwork

    def __init__(
        self,
        network: FlowNetwork,
        pages: FlowPages,
        left_context_chunks: int,
        tiles: Sequence[int] | None = None,
        operations: Operations | None = None,
        interruptible: bool = False,
    ) -> None:
        super().__init__(network, pages, left_context_chunks, None if network.device.type == "cpu" else ENCODER_BUCKETS)
        config, device = network.config, network.device
        rows, width = pages.context_rows.shape[-2:]
        self._layout = Layout(pages.chunk_frames, rows, config.token_mel_ratio, pages.scratch, left_context_chunks)
        if operations is None:
            operations = plain_operations() if device.type == "cpu" else compiled_operations(device, network.dtype, width)
        estimator = PackedEstimator(pack(network.matching.estimator), pages, operations)
        self.parts = solver_parts(config.n_timesteps, interruptible)
        self._solver = PackedSolver(network.matching, estimator, pages, rows)
        self._calls = [_Call(count, BatchMemory(count, config, self._layout, network.dtype, device)) for count in tiles or TILES]

    def record(self) -> None:
        """Record the graphs of all sizes; compiles what Inductor's cache lacks. Largest first: the others fit into its memory."""
        if self.network.device.type != "cuda":
            return
        began, recorder = time.monotonic(), GraphRecorder(self.network.device)
        for call in reversed(self._calls):
            call.memory.clear()
            call.graphs = [recorder.record(lambda call=call, part=part: self._launch(call, part)) for part in self.parts]  # type: ignore[misc]
            _log.info("flow: graph for %d chunks ready after %.1f s", call.tiles, time.monotonic() - began)
        self._warm_encoder()
        _log.info("flow: encoder ready after %.1f s", time.monotonic() - began)
        torch.cuda.empty_cache()  # memory that the first runs took outside the graphs' pool

    @torch.no_grad()
    def _warm_encoder(self) -> None:
        config = self.network.config
        chunk = config.chunk_tokens
        nothing = np.zeros((0, config.output_size), np.float32)
        prompt = VoicePrompt("", np.zeros(0, np.int32), nothing, np.ones(config.spk_embed_dim, np.float32))
        for rows, new, context in itertools.product(WARM_ROWS, WARM_CHUNKS, WARM_CONTEXT):
            if rows * (new + context) * chunk > MAX_GROUP_TOKENS:
                continue
            tokens = (0,) * ((context + new) * chunk)
            span = Span(tokens, context * chunk, len(tokens), prompt, context_pages=(ZERO_PAGE,) * context)
            self._encode([span] * rows)

    def begin(self, spans: Sequence[Span]) -> SpanBatch:
        """As ``FlowRunner.begin``."""
        packed = [index for index, span in enumerate(spans) if self._fits(span)]
        others = [index for index in range(len(spans)) if index not in set(packed)]
        groups: list[tuple[Sequence[int], SpanGroup]] = [
            ([others[place] for place in members], plain) for members, plain in self.from_the_start([spans[index] for index in others])
        ]
        for members in group([spans[index] for index in packed], self._layout, self._calls[-1].tiles):
            indices = [packed[member] for member in members]
            groups.append((indices, self._group([spans[index] for index in indices])))
        return SpanBatch.of(len(spans), groups)

    def _fits(self, span: Span) -> bool:
        layout = self._layout
        return span.streaming and layout.tiles(span) <= self._calls[-1].tiles and layout.scratch(span) <= len(layout.scratch_pages)

    def _group(self, spans: Sequence[Span]) -> SpanGroup:
        """In the smallest batch size that holds them."""
        tiles = sum(self._layout.tiles(span) for span in spans)
        call = next(call for call in self._calls if call.tiles >= tiles)
        return BufferedGroup(self, call, spans, call.buffers, call.memory.state())

    @torch.no_grad()
    def load(self, call: _Call, spans: Sequence[Span]) -> None:
        """Everything before the first step."""
        first_conditions, conditions = self._encode(spans)
        call.memory.bring(spans, first_conditions, conditions)

    def launch(self, call: _Call, number: int) -> None:
        """Queue one of ``parts``."""
        if call.graphs:
            call.graphs[number].replay()
        else:
            self._launch(call, self.parts[number])

    def results(self, call: _Call, spans: Sequence[Span]) -> list[Tensor | EngineError]:
        layout = self._layout
        mel, is_finite = call.memory.results(output_rows(spans, layout))
        results: list[Tensor | EngineError] = []
        tile = frame = 0
        for span in spans:
            count, frames = layout.tiles(span), span.length * layout.ratio
            good = all(is_finite[tile : tile + count])
            results.append(mel[:, frame : frame + frames] if good else EngineError(NOT_FINITE))
            tile, frame = tile + count, frame + frames
        return results

    def _encode(self, spans: Sequence[Span]) -> tuple[list[int], Tensor]:
        """Conditions of all spans, [rows, channels], and the row where each span begins."""
        found: list[Tensor] = []
        first, end = [0] * len(spans), 0
        for members in group_spans(spans, self.network.config.chunk_tokens, min_fill=0.0):
            batch, memory = self.padded_batch([spans[index] for index in members], self.buckets)
            conditions = self.network.encode(batch, encoder_of(memory))
            found.append(conditions.flatten(0, 1))
            for row, index in enumerate(members):
                first[index] = end + row * conditions.shape[1]
            end += len(found[-1])
        return first, torch.cat(found)

    def _launch(self, call: _Call, steps: range) -> None:
        memory = call.memory
        self._solver.launch(steps, memory.arrays, memory.conditions, memory.mel, memory.is_finite)
