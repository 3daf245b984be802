"""A call of the vocoder whose kernels are launched one by one, on memory that a test fills and reads.

All host code that the tests of this folder need is imported here, except for the kernels.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bistream.checkpoints.config import VocoderConfig
from bistream.mel2wav.cuda.batch import META_NUMBERS, Rate, pack_rows
from bistream.mel2wav.cuda.launches import VocoderCall
from bistream.mel2wav.cuda.launches import _packed as packed_rows
from bistream.mel2wav.cuda.launches_convolution import Area
from bistream.mel2wav.cuda.memory import Workspace
from bistream.mel2wav.cuda.weights import VocoderWeights, pack_weights
from bistream.mel2wav.hift import HiFT, ResBlock
from bistream.mel2wav.hop_plan import Bucket, RowPlan
from bistream.mel2wav.noise import normal_noise
from bistream.mel2wav.sizes import MEL_BINS
from bistream.mel2wav.slotted import Slots
from bistream.mel2wav.weights import load_hift
from tests.formats import SAMPLES_PER_MEL_FRAME, VOCODER_OVERLAP_FRAMES, VOCODER_OVERLAP_SAMPLES
from tests.gpu.checks import DEVICE, INTERPRETED, Draw, poison, settled
from tests.unit.mel2wav.tiny import random_state

__all__ = [
    "MEL_BINS", "SAMPLES_PER_MEL_FRAME", "VOCODER_OVERLAP_FRAMES", "Area", "Rate", "ResBlock", "RowPlan", "normal_noise", "packed_rows",
]  # fmt: skip

CONFIG = VocoderConfig()
DTYPE = torch.float16
OVERLAPS = not INTERPRETED and torch.cuda.get_device_capability() >= (9, 0)  # whether a kernel may start while its predecessor runs
STATE_FRAMES = 16  # context and overlap, as in the product
CONTEXT_FRAMES = STATE_FRAMES - VOCODER_OVERLAP_FRAMES
NUM_SLOTS = 9
# Kinds of rows and how many new frames they bring. "first": of a session; "next": with context and overlap; "final": the last one
BATCHES: dict[str, tuple[Bucket, tuple[tuple[str, int], ...]]] = {
    "one frame": (Bucket(2, 40), (("final", 1),)),
    "shorter than the overlap": (Bucket(2, 40), (("first", 7),)),
    "short rows": (Bucket(16, 40), (("first", 3), ("end", 2), ("final", 1))),
    "full": (Bucket(2, 40), (("first", 40), ("next", 24))),
    "ragged": (Bucket(16, 40), (("next", 1), ("first", 1), ("next", 24), ("final", 9), ("end", 3), ("first", 33), ("end", 0))),
    "long": (Bucket(2, 288), (("next", 272), ("first", 100))),
    "wide": (Bucket(16, 136), (("first", 136), ("next", 41), ("end", 120), ("next", 7), ("first", 135), ("first", 65), ("final", 129))),
}
if INTERPRETED:  # it takes its time
    BATCHES = {name: BATCHES[name] for name in ("one frame", "short rows")}


@cache
def hift() -> HiFT:
    with tempfile.TemporaryDirectory() as directory:
        torch.save(random_state(CONFIG), Path(directory) / "hift.pt")
        return load_hift(directory, CONFIG, DEVICE)


@cache
def packed_weights() -> VocoderWeights:
    return pack_weights(hift(), DTYPE)


@cache
def _memory(bucket: Bucket) -> tuple[Slots, Workspace]:
    return Slots(NUM_SLOTS, MEL_BINS, CONFIG.nb_harmonics + 1, DEVICE), Workspace(hift(), (bucket,), DTYPE, DEVICE)


def _plan(number: int, kind: str, new: int, slot: int, out_frame: int) -> RowPlan:
    """As ``runner._plan`` would make it. "first" and "final" have no earlier frames, "next" and "end" have."""
    context = STATE_FRAMES if kind in ("next", "end") else 0
    overlap = CONTEXT_FRAMES if context else 0
    frames = context + new
    emitted = frames if kind in ("end", "final") else max(overlap, frames - VOCODER_OVERLAP_FRAMES)
    return RowPlan(
        slot=slot, frames=frames, context=context, overlap=overlap, first_frame=1000 * number + 17 if context else 0, starts=context == 0,
        fades=context > 0, kept_source=overlap, out_frame=out_frame, emitted=emitted, next_first=max(0, emitted - CONTEXT_FRAMES),
        key=(0x9E3779B9 * (number + 1) % 2**32, 0xFFFFFFFF - number),
    )  # fmt: skip


class VocoderBench:
    """Poison in all memory of a call; its rows, in arbitrary slots."""

    def __init__(self, batch: str, draw: Draw) -> None:
        self.bucket, kinds = BATCHES[batch]
        self.hift, self.weights = hift(), packed_weights()
        self.slots, self.space = _memory(self.bucket)
        space = self.space
        for memory in (self.slots, space):
            poison(*(value for value in vars(memory).values() if isinstance(value, Tensor) and value is not space.real))
        space.real.zero_()
        self.plans: list[RowPlan] = []
        slots = draw.permutation(NUM_SLOTS).tolist()
        for number, (kind, new) in enumerate(kinds):
            out_frame = sum(plan.emitted - plan.overlap for plan in self.plans)
            self.plans.append(_plan(number, kind, new, slots[number], out_frame))
        host = np.zeros((len(space.meta), META_NUMBERS), np.int32)
        pack_rows(self.plans, host, space.rates)
        space.meta.copy_(torch.from_numpy(host))
        self.fades = draw.uniform(0.0, 1.0, VOCODER_OVERLAP_SAMPLES), draw.uniform(0.0, 1.0, VOCODER_OVERLAP_SAMPLES)
        gain = self.hift.m_source.noise_gain()
        self.call = VocoderCall(self.hift, self.weights, self.slots, space, self.bucket, *self.fades, gain, OVERLAPS)

    def starts(self, rate: Rate) -> list[tuple[int, int]]:
        """Where each row begins among packed positions, and its positions."""
        found, before = [], 0
        for row, plan in enumerate(self.plans):
            found.append((before * rate.rate + (row + 1) * rate.gap, plan.frames * rate.rate + rate.extra))
            before += plan.frames
        return found

    def extent(self, rate: Rate) -> int:
        return rate.positions(sum(plan.frames for plan in self.plans), len(self.plans))

    def rows_of(self, tensor: Tensor, size: int) -> Tensor:
        """Memory of rows of one size as [rows, size, ...]."""
        return torch.unflatten(tensor[: self.bucket.rows * size], 0, (self.bucket.rows, size))

    def mark_real(self) -> None:
        """What ``mark_real`` writes, computed with torch."""
        for index, rate in enumerate(self.space.rates):
            for start, length in self.starts(rate):
                self.call._reals[index][start : start + length] = 1

    def fill_rows(self, draw: Draw, slot: Tensor, rate: Rate) -> list[Tensor]:
        """Random rows, zeros in the gaps and NaN after the last one. slot: [capacity, channels]. Returns the rows."""
        slot[: self.extent(rate)] = 0.0
        rows = []
        for start, length in self.starts(rate):
            slot[start : start + length] = draw.normal(length, slot.shape[1], dtype=slot.dtype)
            rows.append(slot[start : start + length].clone())
        return rows

    def fill_source_inputs(self, draw: Draw) -> tuple[list[Tensor], Tensor]:
        """Random output features of the f0 predictor, which then need not run; phases and kept source.

        Returns the features of each row, float64 [frames, channels], and the phases of the slots, float64 [slots, harmonics].
        """
        self.call._f0 = []
        memory, split = self.call._f0_rows, self.call._capacities[0]
        features = []
        for start, length in self.starts(self.space.rates[0]):
            high, low = draw.normal(length, memory.shape[1], dtype=DTYPE), (draw.normal(length, memory.shape[1]) * 2.0**-12).to(DTYPE)
            memory[start : start + length], memory[split + start : split + start + length] = high, low
            features.append(high.double() + low.double())
        phases = draw.uniform(0.0, 1.0, *self.slots.phase.shape).double()
        self.slots.phase.copy_(phases)
        self.slots.source.copy_(draw.normal(*self.slots.source.shape))
        return features, phases

    def fill_results(self, draw: Draw) -> None:
        """Random windows of audio, mel and source in all rows, and random withheld audio in all slots."""
        space, frames = self.space, self.bucket.frames
        sizes = ((space.windows, frames * self.call.rate + 1), (space.mel, frames), (space.source, frames * SAMPLES_PER_MEL_FRAME))
        for tensor in (*(self.rows_of(memory, size) for memory, size in sizes), self.slots.withheld):
            tensor.copy_(0.5 * draw.normal(*tensor.shape))


def launch(method: Callable[..., None], *arguments: Any, **options: Any) -> None:
    with settled():
        method(*arguments, **options)


def doubled(module: nn.Module, dtype: torch.dtype = DTYPE) -> tuple[Tensor, Tensor]:
    """Weight, rounded as the kernels read it, and bias of a convolution in float64."""
    assert isinstance(module, nn.Conv1d | nn.ConvTranspose1d) and module.bias is not None
    return module.weight.to(dtype).double(), module.bias.double()


def snake(x: Tensor, alpha: Tensor) -> Tensor:
    return x + torch.sin(x * alpha) ** 2 / alpha
