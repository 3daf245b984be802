"""Runs the scheduler's steps as recorded CUDA graphs of plain Triton kernels: a ``StepRunner`` for CUDA GPUs (``sizes.graphs_need``).

A step costs the host one pass over its segments, two small copies (rows in, chosen ids out; a third where a head is read) and one
launch; the host receives the ids through an event, up to ``run_ahead`` steps later, and no step waits for the host.

Weights and cache are bfloat16, or float16 where ``dtype`` asks for it.
Results are batch-invariant: the same row gives the same scores, bit for bit, in every number of rows (``pieces_linear``).

On the CPU nothing is recorded: tests give kernels that run there.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from bistream.checkpoints.alignment import Head
from bistream.checkpoints.config import LanguageModelConfig
from bistream.contract.checks import MAX_TOP_K
from bistream.gpu.device import device_name
from bistream.processes.start_phases import phase
from bistream.text2token.engine import TokenSpace
from bistream.text2token.engine_settings import EngineSettings
from bistream.text2token.graphs.batch import NUM_FIELDS, NUM_START_NUMBERS, StartField, bucket_sizes, write_rows, write_starts
from bistream.text2token.graphs.step import GraphStep, MakeKernels
from bistream.text2token.graphs.text_reading import number_of
from bistream.text2token.graphs.tuning import Tuning
from bistream.text2token.graphs.weights import GraphWeights
from bistream.text2token.graphs.work_queue import WorkQueue
from bistream.text2token.kv_cache import PagedCache
from bistream.text2token.sequence import StepPlan
from bistream.text2token.step_runner import SampledRows, on_device

logger = logging.getLogger(__name__)
BLOCK_SIZE = 64  # positions
DEPTH = 4  # entries of the rings: run_ahead, the one being written, and one whose ids are being read
MOST_COMPILATIONS = 1024  # of one function, over all runners of the process

Progress = Callable[[int, int], None]  # row counts prepared, total row counts


class GraphStepRunner:
    """Owns everything on the device: weights, cache, sampler state, graphs. ``record`` False launches kernel by kernel."""

    run_ahead = 2

    def __init__(
        self,
        config: LanguageModelConfig,
        weights: GraphWeights,
        settings: EngineSettings,
        record: bool = True,
        progress: Progress | None = None,
        head: Head | None = None,
        make_kernels: MakeKernels | None = None,
    ) -> None:
        """head: whose attention ``places`` tells; ``settings.knows_texts`` then. make_kernels: as of ``GraphStep``."""
        device = weights.embedding.device
        on_gpu = device.type == "cuda"
        self._tuning = Tuning()
        self.space = TokenSpace.of(config)
        self.settings = settings
        self.buckets = bucket_sizes(settings.max_rows)
        self._record = record and on_gpu
        self._queue = WorkQueue(device, DEPTH)
        with self._queue.entered():
            self.step = GraphStep(config, weights, settings, self._tuning, head, make_kernels)
            self._fields = torch.zeros((settings.max_rows, NUM_FIELDS), dtype=torch.int32, device=device)
        # pinned buffers that the host writes and reads, one entry per step in flight
        pinned = functools.partial(torch.zeros, pin_memory=on_gpu)
        self._fields_in = pinned((DEPTH, *self._fields.shape), dtype=torch.int32)
        self._turn_numbers = pinned((DEPTH, settings.max_sessions, NUM_START_NUMBERS), dtype=torch.int64)
        self._turn_blocks = pinned((DEPTH, settings.max_sessions, settings.blocks_per_sequence), dtype=torch.int32)
        self._chosen_out = pinned((DEPTH, settings.max_rows), dtype=torch.int32)
        self._found_out = pinned((DEPTH, settings.max_rows), dtype=torch.int64)
        self._places: list[int] | None = None
        self._number = 0  # steps so far
        self._graphs: dict[tuple[int, int], tuple[Callable[[], None], Tensor]] = {}  # by rows and candidates
        self._prepare(progress)

    @property
    def cache(self) -> PagedCache:
        return self.step.cache

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> SampledRows:
        entry = self._number % DEPTH
        with on_device():
            self._queue.wait(entry)  # the entry's previous step has finished long ago, unless the device hangs
        bucket = next(size for size in self.buckets if size >= plan.num_rows)
        sampling = write_rows(self._fields_in[entry, :bucket].numpy(), plan.segments, self.settings.max_sessions)
        if plan.starts:
            self._widen(max((start.reset.spec.top_k for start in plan.starts if start.reset is not None), default=1))
            write_starts(self._turn_numbers[entry].numpy(), self._turn_blocks[entry].numpy(), plan.starts, self.space)
        self._number += 1
        with on_device(), self._queue.entered():
            if plan.copies:
                self.step.copy_blocks(plan.copies)
            if plan.starts:
                self.step.kernels.begin_turns(self._turn_numbers[entry, : len(plan.starts)], self._turn_blocks[entry, : len(plan.starts)])
            self._fields[:bucket].copy_(self._fields_in[entry, :bucket], non_blocking=True)
            self._chosen_out[entry, :bucket].copy_(self._compute(bucket), non_blocking=True)
            if self.step.reading is not None:
                self._found_out[entry, :bucket].copy_(self.step.reading.found[:bucket], non_blocking=True)
            self._queue.mark(entry)
        texts = [segment.texts for segment in plan.segments if segment.samples]
        return functools.partial(self._wait, entry, sampling, texts)

    def places(self) -> list[int] | None:
        return self._places

    def _wait(self, entry: int, sampling: Sequence[int], texts: Sequence[Sequence[int]]) -> list[int]:
        self._queue.wait(entry)
        if self.step.reading is not None:
            found = self._found_out[entry, sampling].tolist() if sampling else []
            self._places = list(map(number_of, found, texts))
        chosen: list[int] = self._chosen_out[entry, sampling].tolist() if sampling else []
        return chosen

    def _compute(self, bucket: int) -> Tensor:
        """Run the step of the rows in ``_fields``: replayed, or, the first time, launched and then recorded."""
        key = bucket, self.step.state.top_k_in_use
        if key in self._graphs:
            replay, chosen = self._graphs[key]
            replay()
            return chosen
        launch = functools.partial(self.step.launch, self._fields[:bucket])
        with _compiling():
            chosen = launch()
            if self._record:
                self._graphs[key] = self._queue.record(launch)
        return chosen

    def _widen(self, top_k: int) -> None:
        """Sort more candidates from now on if a session requests it; each row count is recorded again at its next use.

        As many as any session may request: so this happens once, whatever clients send.
        """
        state, vocabulary = self.step.state, self.space.num_scores
        if not self.step.sorts_candidates or top_k <= state.top_k_in_use or state.top_k_in_use >= vocabulary:
            return
        state.top_k_in_use = min(1 << (max(top_k, MAX_TOP_K) - 1).bit_length(), vocabulary)
        logger.info("a session samples with top_k %d: steps are recorded again for %d candidates, which takes seconds per row count",
                    top_k, state.top_k_in_use)  # fmt: skip

    @torch.inference_mode()
    def _prepare(self, progress: Progress | None) -> None:
        """Compile and record every row count with padding rows only, the largest first."""
        with self._queue.entered():
            write_rows(self._fields_in[0].numpy(), (), self.settings.max_sessions)
            self._fields.copy_(self._fields_in[0])
            self._turn_numbers[0, 0, StartField.SLOT] = self.settings.max_sessions
            if self._record:
                facts = {"sizes": repr(self.step.config), "settings": repr(self.settings), "tuning": repr(self._tuning)}
                facts["dtype"] = str(self.step.weights.embedding.dtype)
                self.step.kernels.compile_ahead(self._launch_all, facts | {"device": device_name(self._queue.device)})
            with phase(f"language model: {len(self.buckets)} graphs"):
                for done, bucket in enumerate(reversed(self.buckets), start=1):
                    self._compute(bucket)
                    if progress is not None:
                        progress(done, len(self.buckets))
            self._begin_padding()
            self._queue.finish()

    def _launch_all(self) -> None:
        """Every launch of a kernel that ``_prepare`` and ``run`` make."""
        launch: Callable[[Tensor], Tensor] = self.step.kernels.scores if self.step.sorts_candidates else self.step.launch
        for bucket in self.buckets:
            launch(self._fields[:bucket])
        self._begin_padding()

    def _begin_padding(self) -> None:
        self.step.kernels.begin_turns(self._turn_numbers[0, :1], self._turn_blocks[0, :1])


def _compiling() -> AbstractContextManager[None]:
    """Raises PyTorch's limits on recompilation: functions are compiled per row count and per size of network."""
    limits = {"recompile_limit": MOST_COMPILATIONS, "accumulated_recompile_limit": MOST_COMPILATIONS}
    context: AbstractContextManager[None] = torch._dynamo.config.patch(limits)
    return context
