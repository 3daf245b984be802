"""Runs the DiT's spans on a CUDA GPU: what comes before the solver eagerly, and each of the solver's steps, between which batches may
stop, as one recorded graph per batch size. On the pages of the plain network, which therefore computes what no graph can.

What comes before the solver runs on padded batches of few shapes: the matrix library takes milliseconds to choose a kernel for each
product of a new shape, a tenth of a second for a whole encoder. The usual shapes are run once when the graphs are recorded.

A graph reads its batch from fixed addresses, so it serves contexts of any length. Without a GPU nothing is recorded, and the same launches
run directly.
"""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bistream.errors import EngineError
from bistream.gpu.recording import GraphRecorder
from bistream.token2mel.batching import MAX_GROUP_TOKENS, Buckets, Span, group_spans
from bistream.token2mel.dit.graphs.batch import BatchSize, IntArray32, SlotLayout, batch_sizes
from bistream.token2mel.dit.graphs.network import PackedDit
from bistream.token2mel.dit.graphs.operations import DitOperations
from bistream.token2mel.dit.network import DitFlow
from bistream.token2mel.dit.pages import DitPages
from bistream.token2mel.flow_matching import GuidedSolver
from bistream.token2mel.page_pool import ZERO_PAGE
from bistream.token2mel.pages import GUIDANCE_ROWS
from bistream.token2mel.runner import NOT_FINITE, FlowRunner
from bistream.token2mel.solving import BufferedGroup, FixedBuffers, SpanBatch, SpanGroup
from bistream.types import VoicePrompt

_log = logging.getLogger(__name__)

ENCODER_BUCKETS = Buckets(token_step=25, chunk_step=8)
WARM_ROWS, WARM_CHUNKS, WARM_CONTEXT = (1, 2, 4, 8, 16, 32, 64), (1, 2), (0, 8, 16)  # sessions; chunks of the new part; stored chunks


class BatchMemory:
    """The fixed buffers of one batch size. conditions: [rows, channels]; mel: float32 [rows, bins]; is_finite: bool [rows].

    channels, bins: of the conditions and of the mel.
    """

    def __init__(self, size: BatchSize, layout: SlotLayout, channels: int, bins: int, dtype: torch.dtype, device: torch.device) -> None:
        shapes = layout.array_shapes(size)
        count = sum(math.prod(shape) for shape in shapes.values())
        self._layout = layout
        self._numbers = torch.zeros(count, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._device_numbers = torch.zeros(count, dtype=torch.int32, device=device)
        self._host: dict[str, IntArray32] = {}
        self.arrays: dict[str, Tensor] = {}
        numbers, begin = self._numbers.numpy(), 0
        for name, shape in shapes.items():
            end = begin + math.prod(shape)
            self._host[name] = numbers[begin:end].reshape(shape)
            self.arrays[name] = self._device_numbers[begin:end].view(shape)
            begin = end
        self.conditions = torch.zeros(size.rows, channels, dtype=dtype, device=device)
        self.mel = torch.zeros(size.rows, bins, device=device)
        self.is_finite = torch.zeros(size.rows, dtype=torch.bool, device=device)
        self.clear()

    def clear(self) -> None:
        """Make every tile dead."""
        self._layout.fill(self._host, ())
        self._device_numbers.copy_(self._numbers)

    def bring(self, spans: Sequence[Span], conditions: Sequence[Tensor]) -> None:
        """Load a batch. conditions: of each span, [rows, channels]."""
        self._layout.fill(self._host, spans)
        self._device_numbers.copy_(self._numbers, non_blocking=True)
        torch.cat(list(conditions), out=self.conditions[: sum(map(len, conditions))])

    def state(self) -> tuple[Tensor, ...]:
        """What a batch between two steps of the solver needs afterwards, beside its pages."""
        return self._device_numbers, self.conditions, self.mel

    def results(self, rows: int) -> tuple[Tensor, NDArray[np.bool_]]:
        """Mel of the first rows, [bins, rows], and whether each of them is finite. Waits for the device."""
        mel = self.mel[:rows].T.contiguous()
        return mel, self.is_finite[:rows].cpu().numpy()


class PackedSolver:
    """The Euler steps over a batch of packed rows, as ``GuidedSolver.solve``: the launches that a graph records."""

    def __init__(self, matching: GuidedSolver, network: PackedDit) -> None:
        self._matching = matching
        self._network = network

    @torch.no_grad()
    def launch(self, step: int, arrays: Mapping[str, Tensor], conditions: Tensor, mel: Tensor, is_finite: Tensor) -> None:
        """Queue this step of the solver on the current stream; those before it have been computed.

        conditions: [rows, channels] in the network's dtype. In and out: mel, float32 [rows, bins], which the first step begins with noise;
        all else that steps have in common is computed anew. Out, with the last step: is_finite, bool [rows].
        """
        matching = self._matching
        x = mel if step else matching.noise[arrays["noise"].long()]
        rows, bins = x.shape
        inputs = conditions.new_zeros(GUIDANCE_ROWS, rows, bins + conditions.shape[1])
        inputs[0, :, bins:] = conditions
        inputs[..., :bins] = x
        guided, unguided = self._network.velocity(inputs.flatten(0, 1), step, arrays).float().chunk(2)
        x = x + matching.step_sizes[step] * ((1.0 + matching.guidance) * guided - matching.guidance * unguided)
        mel.copy_(x)
        if step + 1 == matching.n_steps:
            is_finite.copy_(torch.isfinite(x).all(dim=1))


@dataclass
class Call:
    """Resources of batches of one size. graphs: of each step; none until recorded, and always where graphs are off."""

    size: BatchSize
    memory: BatchMemory
    buffers: FixedBuffers = field(default_factory=FixedBuffers)
    graphs: list[torch.cuda.CUDAGraph] = field(default_factory=list)


class DitGraphRunner(FlowRunner):
    """sizes: of batches, cheapest first; the last one holds all that the others hold; None: the usual ones. operations: None: the kernels
    of a GPU."""

    def __init__(
        self,
        network: DitFlow,
        pages: DitPages,
        left_context_chunks: int,
        sizes: Sequence[BatchSize] | None = None,
        operations: DitOperations | None = None,
    ) -> None:
        super().__init__(network, pages, left_context_chunks, None if network.device.type == "cpu" else ENCODER_BUCKETS)
        config, device, matching = network.config, network.device, network.matching
        sizes = sizes or batch_sizes(pages.chunk_frames, pages.total)
        self._layout = layout = SlotLayout(pages.chunk_frames, config.token_mel_ratio, left_context_chunks)
        self._largest = sizes[-1]
        self.steps = config.n_timesteps
        packed = PackedDit(matching.estimator, matching.modulations, pages, operations or _kernels())
        self._solver = PackedSolver(matching, packed)
        channels = config.dit.mel_dim + config.dit.mu_dim + config.dit.spk_dim
        self._calls = [Call(size, BatchMemory(size, layout, channels, config.output_size, network.dtype, device)) for size in sizes]

    def record(self) -> None:
        """Record the graphs of all sizes; compiles what Inductor's cache lacks. Largest first: the others fit into its memory."""
        if self.network.device.type != "cuda":
            return
        began, recorder = time.monotonic(), GraphRecorder(self.network.device)
        for call in reversed(self._calls):
            call.memory.clear()
            launches = [partial(self._launch, call, step) for step in range(self.steps)]
            # The steps of a smaller batch between the first and the last launch what these do.
            for launch in launches if call is self._calls[-1] else {launches[0], launches[-1]}:
                recorder.warm_up(launch)
            call.graphs = [recorder.capture(launch)[0] for launch in launches]
            _log.info("flow: graph for %s ready after %.1f s", call.size, time.monotonic() - began)
        self._warm_encoder()
        _log.info("flow: all shapes ready after %.1f s", time.monotonic() - began)
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
        """As ``FlowRunner.begin``. Spans that no graph can compute: full attention, or larger than the largest batch."""
        packed = [index for index, span in enumerate(spans) if self._layout.fits(span, self._largest)]
        others = sorted(set(range(len(spans))).difference(packed))
        groups: list[tuple[Sequence[int], SpanGroup]] = [
            ([others[place] for place in members], plain) for members, plain in self.plain_groups([spans[index] for index in others])
        ]
        for members in self._layout.group([spans[index] for index in packed], self._largest):
            indices = [packed[member] for member in members]
            groups.append((indices, self._group([spans[index] for index in indices])))
        return SpanBatch.of(len(spans), groups)

    def _group(self, spans: Sequence[Span]) -> SpanGroup:
        """In the cheapest batch size that holds them."""
        needed = self._layout.needs(spans)
        call = next(call for call in self._calls if call.size.holds(needed))
        return BufferedGroup(self, call, spans, call.buffers, call.memory.state())

    @torch.no_grad()
    def load(self, call: Call, spans: Sequence[Span]) -> None:
        """Everything before the first step."""
        call.memory.bring(spans, self._encode(spans))

    def launch(self, call: Call, number: int) -> None:
        """Queue one of the steps."""
        if call.graphs:
            call.graphs[number].replay()
        else:
            self._launch(call, number)

    def results(self, call: Call, spans: Sequence[Span]) -> list[Tensor | EngineError]:
        ends = list(itertools.accumulate(map(self._layout.rows, spans)))
        mel, is_finite = call.memory.results(ends[-1])
        rows = [slice(begin, end) for begin, end in itertools.pairwise([0, *ends])]
        return [mel[:, of_span] if is_finite[of_span].all() else EngineError(NOT_FINITE) for of_span in rows]

    def _encode(self, spans: Sequence[Span]) -> list[Tensor]:
        """Conditions of each span, [rows, channels]."""
        found: dict[int, Tensor] = {}
        for members in group_spans(spans, self.network.config.chunk_tokens, min_fill=0.0):
            conditions = self.network.encode(*self.padded_batch([spans[index] for index in members], self.buckets))
            for index, row in zip(members, conditions, strict=False):  # padded with rows
                found[index] = row[: self._layout.rows(spans[index])]
        return [found[index] for index in range(len(spans))]

    def _launch(self, call: Call, step: int) -> None:
        memory = call.memory
        self._solver.launch(step, memory.arrays, memory.conditions, memory.mel, memory.is_finite)


def _kernels() -> DitOperations:
    from bistream.token2mel.dit.graphs.cuda.launches import gpu_operations  # noqa: PLC0415  (needs Triton)

    return gpu_operations()
