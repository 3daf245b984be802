"""Runs spans on a CUDA GPU: packs them into buckets, one recorded graph per bucket. Replaces ``FlowRunner``.

A graph holds the whole call: encoder, all solver steps, the stores of new state to its pages. Where batches may stop between steps,
there is a graph for each step instead, the first with the encoder. They read the batch from fixed addresses, so they serve contexts of
any length, and all buckets share these: the state of a batch that is interrupted is copied, and put back when it goes on. Spans that
no graph can compute (full attention, or longer than the largest bucket) run on the plain network.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from bistream.errors import EngineError
from bistream.gpu.compile_ahead import compile_ahead
from bistream.gpu.device import device_name
from bistream.gpu.recording import GraphRecorder
from bistream.processes.start_phases import phase
from bistream.store.fingerprint import Fingerprint
from bistream.token2mel.batching import Buckets, Span
from bistream.token2mel.checks import MAX_FRAMES
from bistream.token2mel.cuda.batch import BatchArrays, Bucket, IntArray32, Shape, batch_shapes, batch_size, views, widened_pages
from bistream.token2mel.cuda.batch_filling import fill
from bistream.token2mel.cuda.launches import CudaSolver
from bistream.token2mel.cuda.memory import FlowBuffers
from bistream.token2mel.cuda.tuning import BUCKETS, Tuning, tile_sizes, tuning_of
from bistream.token2mel.cuda.weights import pack_encoder
from bistream.token2mel.first_step import FIRST_CHUNKS, FirstStep
from bistream.token2mel.flow import FlowNetwork
from bistream.token2mel.page_pool import FIRST_PAGE
from bistream.token2mel.pages import GUIDANCE_ROWS, FlowPages
from bistream.token2mel.runner import NOT_FINITE, FlowRunner
from bistream.token2mel.solving import BufferedGroup, FixedBuffers, SpanBatch, SpanGroup

_log = logging.getLogger(__name__)


@dataclass
class _Call:
    """Resources of one bucket. ``graphs``: of each part of the steps; none until they are recorded, and always where graphs are off."""

    bucket: Bucket
    tuning: Tuning
    numbers: Tensor  # the batch on the host; entries after its rows are from older batches, hence valid indices
    host: BatchArrays[IntArray32]
    solver: CudaSolver
    graphs: list[torch.cuda.CUDAGraph] = field(default_factory=list)


class CudaFlowRunner(FlowRunner):
    """``record`` False launches the same kernels without graphs (tests). ``buckets``: smallest first.

    facts: on what the network's results depend, for what is kept for later starts; None: nothing is kept.
    """

    network: FlowNetwork

    def __init__(
        self,
        network: FlowNetwork,
        pages: FlowPages,
        left_context_chunks: int,
        buckets: Sequence[Bucket] = BUCKETS,
        record: bool = True,
        facts: Fingerprint | None = None,
    ) -> None:
        super().__init__(network, pages, left_context_chunks, Buckets())
        self._facts = facts
        config, device = network.config, network.device
        assert FIRST_PAGE + pages.total <= 1 << 15, "attention reads the lower half of a page's number"
        self._flow_pages = pages
        self._buckets = tuple(buckets)
        self._record = record
        self.steps = config.n_timesteps
        self._in_use = FixedBuffers()
        tunings = [tuning_of(bucket) for bucket in self._buckets]
        largest = self._buckets[-1]
        frames = largest.tokens * config.token_mel_ratio
        few = list(zip(self._buckets, (tuning.few for tuning in tunings), strict=True))
        rows = {bucket: GUIDANCE_ROWS * config.token_mel_ratio * bucket.tokens for bucket in self._buckets}
        few_rows = max((rows[bucket] for bucket, tiles in few if tiles is not None), default=0)
        split_rows = max((rows[bucket] * tiles.key_splits for bucket, tiles in few if tiles is not None), default=0)
        read = widened_pages(largest, config, pages.total)
        self._buffers = FlowBuffers(config, frames, few_rows, split_rows, read, network.dtype, device)
        self._weights = pack_encoder(network.encoder, MAX_FRAMES)
        shapes = [
            batch_shapes(bucket, tile_sizes(tuning), config, pages.total) for bucket, tuning in zip(self._buckets, tunings, strict=True)
        ]
        size = max(batch_size(shape) for shape in shapes)
        pinned = device.type == "cuda"
        self._device_numbers = torch.zeros(size, dtype=torch.int32, device=device)
        self._host_mel = torch.zeros(frames, config.output_size, pin_memory=pinned)
        self._device_mel = torch.zeros(frames, config.output_size, device=device)
        self._mel_frames = 0  # of the device's prompt mel; those after them are zero
        self._host_speakers = torch.zeros(largest.sessions, config.spk_embed_dim, pin_memory=pinned)
        self._device_speakers = torch.zeros(largest.sessions, config.spk_embed_dim, device=device)
        self._recorder = GraphRecorder(device)
        self._first_step = FirstStep(config, network.matching, left_context_chunks)
        self._calls = [self._make_call(*item) for item in zip(self._buckets, tunings, shapes, strict=True)]

    def _make_call(self, bucket: Bucket, tuning: Tuning, shapes: BatchArrays[Shape]) -> _Call:
        numbers = torch.zeros(batch_size(shapes), dtype=torch.int32, pin_memory=self.network.device.type == "cuda")
        host = views(numbers.numpy(), shapes)
        arrays = views(self._device_numbers, shapes)
        solver = CudaSolver(
            self.network, self._weights, self._flow_pages, self._buffers, arrays, self._device_mel,
            self._device_speakers, bucket, tuning, self.left_context_chunks, self._first_step.velocities,
        )  # fmt: skip
        return _Call(bucket, tuning, numbers, host, solver)

    def record(self) -> None:
        """Record the graphs of all buckets: a few seconds, plus compiling the kernels the first time."""
        began = time.monotonic()
        with phase("flow: unconditioned half of the first step"):
            self._first_step.prepare(FIRST_CHUNKS, self._facts)
        self._clear()
        if self._record and self.network.device.type == "cuda":
            config = self.network.config
            device = device_name(self.network.device)
            facts = {
                "device": device,
                "sizes": repr(config),
                "steps": repr(self.steps),
                "calls": repr([(call.bucket, call.tuning) for call in self._calls]),
            }
            compile_ahead("flow", self._launch_all, facts | {"left": str(self.left_context_chunks), "dtype": str(self.network.dtype)})
        with phase(f"flow: {len(self._calls) * self.steps} graphs"):
            for call in self._calls:
                self._clear()
                self._record_call(call)
                _log.info("flow: graph for %d tokens ready after %.1f s", call.bucket.tokens, time.monotonic() - began)

    @torch.no_grad()
    def _launch_all(self) -> None:
        """Every kernel that a call launches, of all buckets: from the second step on they are the same."""
        for call in self._calls:
            for step in range(2):
                call.solver.launch(step)

    def _different_steps(self) -> tuple[int, ...]:
        """The first one has what comes before the solver, the last one what comes after it; all others launch the same kernels."""
        return 0, 1, self.steps - 1

    def begin(self, spans: Sequence[Span]) -> SpanBatch:
        """As ``FlowRunner.begin``."""
        largest = self._buckets[-1]
        recorded = [index for index, span in enumerate(spans) if span.streaming and span.length <= largest.tokens]
        others = [index for index in range(len(spans)) if index not in set(recorded)]
        # The graphs do not store what ``first_step`` makes unnecessary, so the plain network cannot read their state.
        groups: list[tuple[Sequence[int], SpanGroup]] = [
            ([others[place] for place in members], plain) for members, plain in self.from_the_start([spans[index] for index in others])
        ]
        for group in _groups([spans[index].length for index in recorded], largest):
            members = [recorded[position] for position in group]
            groups.append((members, self._group([spans[index] for index in members])))
        return SpanBatch.of(len(spans), groups)

    def _group(self, spans: Sequence[Span]) -> SpanGroup:
        """In the smallest bucket that holds them."""
        tokens = sum(span.length for span in spans)
        call = next(call for call in self._calls if call.bucket.tokens >= tokens and call.bucket.sessions >= len(spans))
        state = (self._device_numbers[: len(call.numbers)], *call.solver.state())
        return BufferedGroup(self, call, spans, self._in_use, state)

    @torch.no_grad()
    def load(self, call: _Call, spans: Sequence[Span]) -> None:
        """Bring a batch to the device."""
        config = self.network.config
        fill(call.host, spans, tile_sizes(call.tuning), config, self.left_context_chunks)
        self._device_numbers[: len(call.numbers)].copy_(call.numbers, non_blocking=True)
        self._copy_prompts(spans)
        self._first_step.extend(max(-(-span.end // config.encoder.static_chunk_size) for span in spans))
        if not call.graphs and self._record:
            self._record_call(call)

    @torch.no_grad()
    def launch(self, call: _Call, number: int) -> None:
        """Queue one of the steps."""
        if call.graphs:
            call.graphs[number].replay()
        else:
            call.solver.launch(number)

    @torch.no_grad()
    def results(self, call: _Call, spans: Sequence[Span]) -> list[Tensor | EngineError]:
        ratio = self.network.config.token_mel_ratio
        ends = np.cumsum([span.length for span in spans]) * ratio
        frames = int(ends[-1])
        mel = self._buffers.mel[:frames].T.contiguous()
        is_finite = call.solver.is_finite[:frames].cpu().numpy()
        results: list[Tensor | EngineError] = []
        for span, end in zip(spans, ends.tolist(), strict=True):
            begin = end - span.length * ratio
            results.append(mel[:, begin:end] if is_finite[begin:end].all() else EngineError(NOT_FINITE))
        return results

    def _copy_prompts(self, spans: Sequence[Span]) -> None:
        """Copy speakers and, where spans overlap the prompt, its mel; zeros elsewhere."""
        ratio = self.network.config.token_mel_ratio
        speakers, mels = self._host_speakers.numpy(), self._host_mel.numpy()
        row = reach = 0
        for index, span in enumerate(spans):
            speakers[index] = span.prompt.speaker_embedding
            mel = span.prompt.speech_feat[span.start * ratio : span.end * ratio]
            if len(mel):
                mels[reach:row] = 0.0
                mels[row : row + len(mel)] = mel
                reach = row + len(mel)
            row += span.length * ratio
        self._device_speakers[: len(spans)].copy_(self._host_speakers[: len(spans)], non_blocking=True)
        self._device_mel[:reach].copy_(self._host_mel[:reach], non_blocking=True)
        if self._mel_frames > reach:
            self._device_mel[reach : self._mel_frames].zero_()
        self._mel_frames = reach

    def _record_call(self, call: _Call) -> None:
        """Recording computes the batch on the device (again), from its first step on, which changes nothing."""
        if self.network.device.type == "cuda":
            with torch.no_grad():
                for step in self._different_steps():
                    self._recorder.warm_up(partial(call.solver.launch, step))
                call.graphs = [self._recorder.capture(partial(call.solver.launch, step))[0] for step in range(self.steps)]

    def _clear(self) -> None:
        """Empty the batch on the device."""
        self._device_numbers.zero_()


def _groups(lengths: Sequence[int], largest: Bucket) -> list[list[int]]:
    """Positions in groups that fit the largest bucket, in order."""
    groups: list[list[int]] = []
    tokens = 0
    for position, length in enumerate(lengths):
        if not groups or len(groups[-1]) == largest.sessions or tokens + length > largest.tokens:
            groups.append([])
            tokens = 0
        groups[-1].append(position)
        tokens += length
    return groups
