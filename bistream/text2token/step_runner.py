"""Executes the steps that the scheduler plans: builds their tensors, runs the model, samples.

In: ``StepPlan`` (integers). Out: a function that waits for the sampled head rows. A runner keeps all device state (KV
cache, sampler state, block tables); plans must be run in the order in which they were made. ``EagerRunner`` is the plain PyTorch
implementation: CPU path and reference. ``graphs.runner`` implements ``StepRunner`` with recorded graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from bistream.checkpoints.alignment import Head
from bistream.text2token.attention import MIN_PRODUCT_ROWS, plan_attention
from bistream.text2token.engine import TokenSpace
from bistream.text2token.engine_settings import EngineSettings
from bistream.text2token.kv_cache import PagedCache
from bistream.text2token.qwen2 import Observe, Qwen2Model
from bistream.text2token.sampler import Sampler, SamplerState
from bistream.text2token.sequence import Segment, StepPlan, TurnStart
from bistream.text2token.text_reading import TextReader

SampledRows = Callable[[], list[int]]  # waits; one head row, INACTIVE or NOT_FINITE per sampling segment of the plan


class DeviceFailedError(Exception):
    """What a failed step left on the device is unknown; no later step may build on it."""


@contextmanager
def on_device() -> Iterator[None]:
    """Around everything that a step does on a device of its own."""
    try:
        yield
    except Exception as error:
        raise DeviceFailedError("the device failed in a step") from error


class StepRunner(Protocol):
    run_ahead: int  # steps that may be started after one whose ids are still awaited
    space: TokenSpace
    settings: EngineSettings

    def run(self, plan: StepPlan) -> SampledRows:
        """Start a step; one without segments computes a row of nobody. After ``DeviceFailedError``, and whatever waiting for its ids
        raises, the runner is unusable. After any other exception the step, or parts of it, can be run again."""

    def places(self) -> list[int] | None:
        """Where in its text each id is that the step sampled whose ids were waited for last: see ``Scheduler.apply``. None: not known."""


class EagerRunner:
    run_ahead = 0

    def __init__(self, model: Qwen2Model, settings: EngineSettings, sampler: Sampler, head: Head | None = None) -> None:
        """head: whose attention ``places`` tells; ``settings.knows_texts`` then."""
        self.model = model = Qwen2Model(model.config, model.weights.packed())
        self.space = model.space
        self.settings = settings
        self.sampler = sampler
        self.block_size = settings.block_size
        # one more block and slot than can be owned, for padding rows
        self.cache = PagedCache(model.config, settings.num_blocks + 1, settings.block_size, model.device, model.dtype)
        self.state = SamplerState(settings.max_sessions, model.space, sampler.history_size, model.device)
        self.tables = np.zeros((settings.max_sessions + 1, settings.blocks_per_sequence), dtype=np.int64)
        self.tables[settings.max_sessions] = settings.num_blocks
        self._reader = None if head is None else TextReader(head, model.config, self.cache)
        self._padding = (Segment(settings.max_sessions, 0, (0,), samples=False),)
        # every thread of MKL's products needs its kernel's minimum of rows, or results would depend on the number of rows
        uses_mkl = model.device.type == "cpu" and not model.weights.is_packed
        self.row_multiple = MIN_PRODUCT_ROWS * min(torch.get_num_threads(), 4) if uses_mkl else 1

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> SampledRows:
        """On the CPU a second run writes the same again: what a step both reads and writes, the sampler's state, it writes last."""
        with nullcontext() if self.model.device.type == "cpu" else on_device():
            return self._run(plan)

    def _run(self, plan: StepPlan) -> SampledRows:
        if plan.copies:
            self.cache.copy_blocks(plan.copies)
        if plan.starts:
            self._start_turns(plan.starts)
        sampling = [index for index, segment in enumerate(plan.segments) if segment.samples]
        ends = np.cumsum([segment.num_rows for segment in plan.segments]) - 1
        if self._reader is not None:
            has_new = any(start.reset is not None for start in plan.starts)
            self._reader.begin([plan.segments[index] for index in sampling], ends[sampling], self.tables, has_new)
        hidden = self._forward(plan.segments or self._padding, self._reader.observe if self._reader is not None and sampling else None)
        if not sampling:
            return list
        slots = self._tensor(np.array([plan.segments[index].slot for index in sampling]))
        logits = self.model.logits(hidden[self._tensor(self._padded(ends[sampling]))])[: len(sampling)]
        log_probs, not_finite = self.state.masked_log_probs(logits, slots)
        chosen = self.sampler.choose(log_probs, self.state, slots)
        recorded: SampledRows = self.state.record(slots, chosen, not_finite).tolist
        return recorded

    def places(self) -> list[int] | None:
        return None if self._reader is None else self._reader.found

    def _start_turns(self, starts: tuple[TurnStart, ...]) -> None:
        for start in starts:
            if start.reset is not None:
                self.tables[start.slot, : len(start.reset.blocks)] = start.reset.blocks
        self.state.start_turns(starts)

    def _forward(self, segments: tuple[Segment, ...], observe: Observe | None) -> torch.Tensor:
        """Hidden states [rows, hidden] of all rows in the order of the segments, followed by padding rows."""
        counts = np.array([segment.num_rows for segment in segments])
        slots = np.repeat(np.array([segment.slot for segment in segments]), counts)
        starts = np.cumsum(counts) - counts
        positions = np.arange(counts.sum()) + np.repeat(np.array([segment.position for segment in segments]) - starts, counts)
        plan = plan_attention(
            [(segment.position, segment.num_rows) for segment in segments],
            [self.tables[segment.slot] for segment in segments],
            self.block_size,
            self.model.device,
            [index for index, segment in enumerate(segments) if segment.ids is None],
        )
        slots = self._padded(slots, len(self.tables) - 1)
        positions = self._padded(positions)
        cache_index = self.tables[slots, positions // self.block_size] * self.block_size + positions % self.block_size
        return self.model.forward_rows(
            self._input_ids(segments, slots), self._tensor(positions), self.cache, self._tensor(cache_index), plan, observe
        )

    def _input_ids(self, segments: tuple[Segment, ...], slots: NDArray[np.int64]) -> torch.Tensor:
        """Ids from the host, or (given as -1) the id last sampled in the slot, which the host may not know yet."""
        ids: list[int] = []
        for segment in segments:
            ids.extend((-1,) if segment.ids is None else segment.ids)
        given = self._tensor(self._padded(np.array(ids)))
        return torch.where(given < 0, self.state.last_id[self._tensor(slots)], given)

    def _padded(self, rows: NDArray[np.int64], filler: int = 0) -> NDArray[np.int64]:
        missing = -len(rows) % self.row_multiple
        return np.pad(rows, (0, missing), constant_values=filler) if missing else rows

    def _tensor(self, array: NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(array).to(self.model.device)
