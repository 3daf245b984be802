"""Runs the scheduler's steps on CUDA: a ``StepRunner`` with one CUDA graph per bucket of rows.

A step costs the host one pass over its segments and one launch. The kernels read the rows from pinned memory and write the chosen ids
there; the host waits for them through an event, up to ``run_ahead`` steps later, and no step waits for the host.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bistream.checkpoints.config import LanguageModelConfig
from bistream.gpu.compile_ahead import compile_ahead
from bistream.gpu.device import device_name
from bistream.gpu.recording import GraphRecorder
from bistream.processes.start_phases import phase
from bistream.text2token.cuda import kernels_turns
from bistream.text2token.cuda.batch import NUM_START_NUMBERS, StartField, bucket_sizes, write_rows, write_starts
from bistream.text2token.cuda.launches import CudaStep
from bistream.text2token.cuda.memory import BLOCK_SIZE, CudaCache, StepBuffers
from bistream.text2token.cuda.tuning import MEASURED_BEST, Tuning
from bistream.text2token.cuda.weights import PackedWeights
from bistream.text2token.engine import TokenSpace
from bistream.text2token.engine_settings import EngineSettings
from bistream.text2token.sampler import DEFAULT_HISTORY, SamplerState
from bistream.text2token.sequence import StepPlan
from bistream.text2token.step_runner import SampledRows, on_device

DEPTH = 8  # entries of the rings; more than run_ahead + 1

Progress = Callable[[int, int], None]  # graphs captured, total graphs


class CudaRunner:
    """Owns everything on the device: weights, cache, sampler state, buffers, graphs. ``record`` False launches kernel by kernel."""

    run_ahead = 2

    def __init__(
        self,
        config: LanguageModelConfig,
        weights: PackedWeights,
        settings: EngineSettings,
        record: bool = True,
        progress: Progress | None = None,
        tuning: Tuning = MEASURED_BEST,
    ) -> None:
        assert settings.block_size == BLOCK_SIZE, "the attention kernel processes one block per warp"
        device = weights.embedding.device
        self.space = TokenSpace.of(config)
        self.settings = settings
        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.filler_slot = settings.max_sessions
        with torch.cuda.device(device), torch.cuda.stream(self.stream):
            self.cache = CudaCache(config, settings.num_blocks, device)
            self.state = SamplerState(settings.max_sessions, self.space, DEFAULT_HISTORY, device)
            self.table = torch.zeros((settings.max_sessions + 1, settings.blocks_per_sequence), dtype=torch.int32, device=device)
            self.buffers = StepBuffers(config, settings.max_rows, DEPTH, self.table, device)
        self.step = CudaStep(config, weights, self.cache, self.state, self.buffers, tuning)
        self.buckets = bucket_sizes(settings.max_rows)
        self._start_numbers = _pinned((DEPTH, settings.max_sessions, NUM_START_NUMBERS), torch.int64)
        self._start_blocks = _pinned((DEPTH, settings.max_sessions, settings.blocks_per_sequence), torch.int32)
        self._ring = self.buffers.ring.numpy()
        self._results = self.buffers.results.numpy()
        self._events = [torch.cuda.Event() for _ in range(DEPTH)]  # type: ignore[no-untyped-call]
        self._number = 0  # steps so far; the device keeps its own count (``StepBuffers.clock``)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._prepare(record, progress)

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> SampledRows:
        entry = self._number % DEPTH
        with on_device():
            self._events[entry].synchronize()  # the entry's previous step has finished long ago, unless the device hangs
        bucket = next(size for size in self.buckets if size >= plan.num_rows)
        sampling = write_rows(self._ring[entry, :bucket], plan.segments, self.filler_slot)
        if plan.starts:
            write_starts(self._start_numbers[entry].numpy(), self._start_blocks[entry].numpy(), plan.starts, self.space)
        self._number += 1  # with the device's count, and so not for a step that the host could not write
        with on_device(), torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            if plan.copies:
                self.cache.copy_blocks(plan.copies)
            if plan.starts:
                self._begin_turns(entry, len(plan.starts))
            if bucket in self._graphs:
                self._graphs[bucket].replay()
            else:
                self.step.launch(bucket)
            self._events[entry].record(self.stream)
        return functools.partial(self._wait, entry, sampling)

    def _wait(self, entry: int, sampling: Sequence[int]) -> list[int]:
        self._events[entry].synchronize()
        chosen: list[int] = self._results[entry, sampling].tolist() if sampling else []
        return chosen

    def _begin_turns(self, entry: int, num_turns: int) -> None:
        state = self.state
        kernels_turns.begin_turns[(num_turns,)](
            self._start_numbers[entry], self._start_blocks[entry], self.table, self.table.stride(0),
            state.top_p, state.top_k, state.temperature, state.win_size, state.min_repeats, state.key, state.num_decided,
            state.running.view(torch.uint8), state.num_new, state.max_new, state.min_new,
            state.forbidden.view(torch.uint8), state.forbidden_early.view(torch.uint8), state.record_on_length,
            SPECIALS=len(self.space.specials), num_warps=1,
        )  # fmt: skip

    def _prepare(self, record: bool, progress: Progress | None) -> None:
        """Compile every kernel with padding rows only, and capture the graphs, the largest first."""
        recorder = GraphRecorder(self.device, self.stream)
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            if record:
                facts = {"sizes": repr(self.step.config), "settings": repr(self.settings), "tuning": repr(self.step.tuning)}
                compile_ahead("language model", self._launch_all, facts | {"device": device_name(self.device)})
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream), phase(f"language model: {len(self.buckets)} graphs"):
            for done, bucket in enumerate(reversed(self.buckets), start=1):
                write_rows(self._ring[0, :bucket], (), self.filler_slot)
                self.buffers.clock.zero_()
                launch = functools.partial(self.step.launch, bucket)
                if record:
                    self._graphs[bucket] = recorder.record(launch)
                else:
                    recorder.warm_up(launch)
                if progress is not None:
                    progress(done, len(self.buckets))
            self._start_numbers[0, 0, StartField.SLOT] = self.filler_slot
            self._begin_turns(0, 1)
            self.buffers.clock.zero_()
            self.stream.synchronize()

    def _launch_all(self) -> None:
        """Every launch that ``_prepare`` and ``run`` make."""
        for bucket in self.buckets:
            self.step.launch(bucket)
        self._begin_turns(0, 1)


def _pinned(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.zeros(shape, dtype=dtype, pin_memory=True)
