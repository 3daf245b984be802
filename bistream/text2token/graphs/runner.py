"""Runs the scheduler's steps as recorded CUDA graphs of library code: a ``StepRunner`` for every CUDA GPU and every size of network.

A step costs the host one pass over its segments, two small copies (rows in, chosen ids out) and one launch; the host receives the ids
through an event, up to ``run_ahead`` steps later, and no step waits for the host.

Weights and cache are bfloat16, or float16 on GPUs without it (compute capability below 8.0, such as the T4). PyTorch compiles for
those as well, but this was not tested on one.

Results are not batch-invariant: the matrix library chooses its kernels by the number of rows, and in 16 bit another order of sums
can change a close decision. So the same seed may give other speech in another mix of sessions (the kernels of ``cuda`` exclude that).

On the CPU the same functions run eagerly, neither compiled nor recorded, for tests.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from bistream.checkpoints.config import LanguageModelConfig
from bistream.contract.checks import MAX_TOP_K
from bistream.text2token.cuda.batch import NUM_FIELDS, NUM_START_NUMBERS, write_rows, write_starts
from bistream.text2token.engine import TokenSpace
from bistream.text2token.engine_settings import EngineSettings
from bistream.text2token.graphs.attention import BLOCK_SIZE
from bistream.text2token.graphs.step import GraphStep, StepFunctions, compiled_functions
from bistream.text2token.graphs.tuning import GraphTuning
from bistream.text2token.graphs.weights import GraphWeights
from bistream.text2token.graphs.work_queue import WorkQueue
from bistream.text2token.kv_cache import PagedCache
from bistream.text2token.sequence import StepPlan, TurnStart
from bistream.text2token.step_runner import SampledRows, on_device

logger = logging.getLogger(__name__)
DEPTH = 4  # entries of the rings: run_ahead, the one being written, and one whose ids are being read
FEW_TURNS = 8
MOST_COMPILATIONS = 1024  # of one function, over all runners of the process

Progress = Callable[[int, int], None]  # row counts prepared, total row counts


def bucket_sizes(most: int, smallest: int = 1) -> tuple[int, ...]:
    """Powers of two from ``smallest`` up, then ``most``: few, because each costs a compilation."""
    sizes = (smallest << power for power in range(most.bit_length()))
    return (*(size for size in sizes if size < most), most)


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
        tuning: GraphTuning | None = None,
    ) -> None:
        assert settings.block_size == BLOCK_SIZE, "a block must be one tile of attention"
        device = weights.embedding.device
        on_gpu = device.type == "cuda"
        tuning = GraphTuning() if tuning is None else tuning
        self.space = TokenSpace.of(config)
        self.settings = settings
        self.buckets = bucket_sizes(settings.max_rows)
        self._turn_buckets = tuple(sorted({min(FEW_TURNS, settings.max_sessions), settings.max_sessions}))
        self._record = record and on_gpu
        self._queue = WorkQueue(device, DEPTH)
        with self._queue.entered():
            self.step = GraphStep(config, weights, settings, compiled_functions(tuning) if on_gpu else StepFunctions(), tuning)
            self._fields = torch.zeros((settings.max_rows, NUM_FIELDS), dtype=torch.int32, device=device)
            self._turn_numbers = torch.zeros((settings.max_sessions, NUM_START_NUMBERS), dtype=torch.int64, device=device)
            self._turn_blocks = torch.zeros((settings.max_sessions, settings.blocks_per_sequence), dtype=torch.int32, device=device)
        # pinned buffers that the host writes and reads, one entry per step in flight
        pinned = functools.partial(torch.zeros, pin_memory=on_gpu)
        self._fields_in = pinned((DEPTH, *self._fields.shape), dtype=torch.int32)
        self._turn_numbers_in = pinned((DEPTH, *self._turn_numbers.shape), dtype=torch.int64)
        self._turn_blocks_in = pinned((DEPTH, *self._turn_blocks.shape), dtype=torch.int32)
        self._chosen_out = pinned((DEPTH, settings.max_rows), dtype=torch.int32)
        self._number = 0  # steps so far
        self._graphs: dict[tuple[int, int], tuple[Callable[[], None], Tensor]] = {}  # by rows and candidates
        self._turn_graphs: dict[int, Callable[[], None]] = {}
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
        num_turns = self._write_starts(entry, plan.starts) if plan.starts else 0
        self._number += 1
        with on_device(), self._queue.entered():
            if plan.copies:
                self.step.cache.copy_blocks(plan.copies)
            if num_turns:
                self._begin_turns(entry, num_turns)
            self._fields[:bucket].copy_(self._fields_in[entry, :bucket], non_blocking=True)
            self._chosen_out[entry, :bucket].copy_(self._compute(bucket), non_blocking=True)
            self._queue.mark(entry)
        return functools.partial(self._wait, entry, sampling)

    def _wait(self, entry: int, sampling: Sequence[int]) -> list[int]:
        self._queue.wait(entry)
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

    def _write_starts(self, entry: int, starts: Sequence[TurnStart]) -> int:
        """On the host. Returns how many turns begin, those of padding included."""
        self._widen(max((start.reset.spec.top_k for start in starts if start.reset is not None), default=1))
        bucket = next(size for size in self._turn_buckets if size >= len(starts))
        numbers, blocks = self._turn_numbers_in[entry, :bucket], self._turn_blocks_in[entry, :bucket]
        write_starts(numbers.numpy(), blocks.numpy(), starts, self.space)
        self._pad_turns(numbers[len(starts) :])
        return bucket

    def _begin_turns(self, entry: int, bucket: int) -> None:
        self._turn_numbers[:bucket].copy_(self._turn_numbers_in[entry, :bucket], non_blocking=True)
        self._turn_blocks[:bucket].copy_(self._turn_blocks_in[entry, :bucket], non_blocking=True)
        self._write_turns(bucket)

    def _write_turns(self, bucket: int) -> None:
        if bucket in self._turn_graphs:
            self._turn_graphs[bucket]()
            return
        launch = functools.partial(self.step.begin_turns, self._turn_numbers[:bucket], self._turn_blocks[:bucket])
        with _compiling():
            launch()
            if self._record:
                self._turn_graphs[bucket], _ = self._queue.record(launch)

    def _pad_turns(self, numbers: Tensor) -> None:
        numbers.zero_()
        numbers[:, 0] = self.settings.max_sessions

    def _widen(self, top_k: int) -> None:
        """Sort more candidates from now on if a session requests it; each row count is recorded again at its next use.

        As many as any session may request: so this happens once, whatever clients send.
        """
        if top_k <= self.step.state.top_k_in_use or self.step.state.top_k_in_use >= self._vocabulary:
            return
        self.step.state.top_k_in_use = min(1 << (max(top_k, MAX_TOP_K) - 1).bit_length(), self._vocabulary)
        logger.info("a session samples with top_k %d: steps are recorded again for %d candidates, which takes seconds per row count",
                    top_k, self.step.state.top_k_in_use)  # fmt: skip

    @property
    def _vocabulary(self) -> int:
        return len(self.step.weights.head_bias)

    @torch.inference_mode()
    def _prepare(self, progress: Progress | None) -> None:
        """Compile and record every row count with padding rows only, the largest first."""
        with self._queue.entered():
            padding = self._fields_in[0]
            write_rows(padding.numpy(), (), self.settings.max_sessions)
            self._fields.copy_(padding)
            for done, bucket in enumerate(reversed(self.buckets), start=1):
                self._compute(bucket)
                if progress is not None:
                    progress(done, len(self.buckets))
            self._pad_turns(self._turn_numbers)
            for bucket in reversed(self._turn_buckets):
                self._write_turns(bucket)
            self._queue.finish()


def _compiling() -> AbstractContextManager[None]:
    """Raises PyTorch's limits on recompilation: functions are compiled per row count and per size of network."""
    limits = {"recompile_limit": MOST_COMPILATIONS, "accumulated_recompile_limit": MOST_COMPILATIONS}
    context: AbstractContextManager[None] = torch._dynamo.config.patch(limits)
    return context
