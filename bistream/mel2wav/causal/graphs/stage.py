"""The causal vocoder stage of the tier of recorded graphs: state of all sessions in slots, one recorded graph per bucket.

A call over more frames than the largest bucket holds is made in pieces, which joined are the same audio. Offline synthesis runs on the
plain network.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from bistream.checkpoints.config import CausalVocoderConfig
from bistream.config import RuntimeConfig
from bistream.errors import BusyError
from bistream.gpu.recording import GraphRecorder
from bistream.gpu.steps import Steps
from bistream.mel2wav.causal.graphs.call import CausalCall, CausalParts, CausalSlots, state_sizes
from bistream.mel2wav.causal.graphs.decoder import POSITIONS_DIM, Decoder
from bistream.mel2wav.causal.graphs.functions import Backend, Functions
from bistream.mel2wav.causal.graphs.meta import META_NUMBERS, pack_rows
from bistream.mel2wav.causal.hop_plan import CausalPlan, advance, plan_call
from bistream.mel2wav.causal.layers import LayerMemory
from bistream.mel2wav.causal.stage import CausalVocoderStage
from bistream.mel2wav.frames import SAMPLES_PER_MEL_FRAME
from bistream.mel2wav.hop_plan import Bucket, bucket_of, group_rows
from bistream.mel2wav.slotted import SCRATCH_SLOT
from bistream.mel2wav.stage import VocoderHop
from bistream.types import FloatArray

_log = logging.getLogger(__name__)

# Frames of a call: those of a hop and 4 that were known before. A steady hop has 54.
BUCKETS = tuple(Bucket(rows, frames) for frames in (32, 56, 112, 224) for rows in (2, 16, 64) if rows * frames <= 64 * 56)


@dataclass(eq=False)
class CausalSlotState:
    """A session whose tensors are in ``slot`` until it is closed; numbers as in ``causal.state.CausalState``."""

    slot: int
    free_slots: list[int] = field(repr=False)
    received_frames: int = 0
    pitched_frames: int = 0
    decoded_frames: int = 0
    finalized: bool = False
    closed: bool = False

    def close(self) -> None:
        """Give the slot back. Idempotent."""
        if not self.closed:
            self.free_slots.append(self.slot)
        self.closed = True


class CausalGraphStage:
    """``vocoder.Vocoder``. plain: its network is used, and it synthesises offline. ``record`` False runs the same call without a graph.

    dtype: of the decoder's convolutions. backend: of ``torch.compile``; None: do not compile.
    """

    joins_exactly = True

    def __init__(
        self, config: RuntimeConfig, sizes: CausalVocoderConfig, plain: CausalVocoderStage, *, dtype: torch.dtype = torch.float16,
        record: bool = True, backend: Backend = "inductor", buckets: Sequence[Bucket] = BUCKETS,
    ) -> None:  # fmt: skip
        self.plain, self.device, self.buckets = plain, plain.device, buckets
        self._look_right, self._f0_look_right = sizes.conv_pre_look_right, sizes.f0_look_right
        self._record = record
        hift, functions = plain.hift, Functions(backend)
        decoder = Decoder(hift, dtype, functions)
        rows, self._most_frames = max(bucket.rows for bucket in buckets), max(bucket.frames for bucket in buckets)
        columns = max(bucket.rows * bucket.frames for bucket in buckets)
        sizes_of_state = state_sizes(hift, Decoder(hift, dtype, Functions(None)))  # nothing is compiled for one session
        self._slots = self._make_slots(config.max_sessions + 1, sizes_of_state, dtype)
        self._free_slots = list(range(config.max_sessions, SCRATCH_SLOT, -1))
        on_gpu = self.device.type == "cuda"
        self._host_meta = torch.zeros(rows, META_NUMBERS, dtype=torch.int64, pin_memory=on_gpu)
        self._parts = CausalParts(
            hift=hift,
            decoder=decoder,
            functions=functions,
            slots=self._slots,
            meta=torch.zeros(rows, META_NUMBERS, dtype=torch.int64, device=self.device),
            new_mel=torch.zeros(columns, sizes.in_channels, device=self.device),
            noise=plain.noise,
            layer_memory=_layer_memory(on_gpu),
        )
        self._calls = {bucket: CausalCall(self._parts, bucket) for bucket in buckets}
        self._host_audio = torch.zeros(max(call.audio.numel() for call in self._calls.values()), pin_memory=on_gpu)
        self._graphs: dict[Bucket, torch.cuda.CUDAGraph] = {}

    def _make_slots(self, count: int, sizes_of_state: tuple[int, int, int], dtype: torch.dtype) -> CausalSlots:
        """sizes_of_state: see ``state_sizes``."""
        hift, device = self.plain.hift, self.device
        bins, harmonics = hift.config.in_channels, hift.config.nb_harmonics + 1
        layers, waves, f0_layers = sizes_of_state
        return CausalSlots(
            mel=torch.zeros(count, self._look_right, bins, device=device),
            source=torch.zeros(count, hift.source_samples_before + SAMPLES_PER_MEL_FRAME, device=device),
            layers=torch.zeros(count, layers, dtype=dtype, device=device),
            waves=torch.zeros(count, waves, device=device),
            f0_layers=torch.zeros(count, f0_layers, dtype=torch.float64, device=device),
            cycles=torch.zeros(count, harmonics, dtype=torch.float64, device=device),
        )

    def record(self) -> None:
        """Record the graphs of all buckets, largest first; the first time on a machine, most of the time is compilation."""
        began, recorder = time.monotonic(), GraphRecorder(self.device)
        self._parts.meta.zero_()  # padding rows only
        for bucket in sorted(self.buckets, key=lambda bucket: (bucket.rows * bucket.frames, bucket.rows), reverse=True):
            self._graphs[bucket] = recorder.record(self._calls[bucket].launch)
        _log.info("vocoder: %d graphs ready after %.1f s", len(self._graphs), time.monotonic() - began)

    @property
    def slots(self) -> tuple[int, int]:
        """As ``Vocoder.slots``."""
        total = len(self._slots.cycles) - 1  # without the scratch slot
        return total - len(self._free_slots), total

    @torch.inference_mode()
    def open(self, seed: int) -> CausalSlotState:
        """As ``CausalVocoderStage.open``. Raises ``BusyError`` when ``max_sessions`` are open."""
        if not self._free_slots:
            raise BusyError("The vocoder has no room for another session; try again later.")
        slot = self._free_slots.pop()
        self._slots.clear(slot)
        return CausalSlotState(slot, self._free_slots)

    @torch.inference_mode()
    def hop(self, hops: Sequence[VocoderHop]) -> list[FloatArray]:
        """As ``CausalVocoderStage.hop``."""
        waveforms: list[list[FloatArray]] = [[] for _ in hops]
        left = {index: self._pieces(hop) for index, hop in enumerate(hops)}
        while left:
            pieces = {index: piece for index, rest in left.items() if (piece := next(rest, None)) is not None}
            left = {index: left[index] for index in pieces}
            for index, waveform in self._hop_pieces(pieces):
                waveforms[index].append(waveform)
        for hop in hops:
            hop.state.finalized |= hop.finalize
        return [np.concatenate(found) if found else np.zeros(0, np.float32) for found in waveforms]

    def synthesize(self, mel: Tensor, seed: int, speed: float = 1.0) -> FloatArray:
        """As ``CausalVocoderStage.synthesize``."""
        return self.plain.synthesize(mel, seed, speed)

    def synthesis(self, mel: Tensor, seed: int, speed: float = 1.0) -> Steps[FloatArray]:
        """As ``CausalVocoderStage.synthesis``."""
        return self.plain.synthesis(mel, seed, speed)

    def _pieces(self, hop: VocoderHop) -> Iterator[VocoderHop]:
        """The hop in as many as its frames need: each with what was known before fits a bucket."""
        state, frames = _slot_state(hop), hop.mel.shape[1]
        if not frames and not hop.finalize:
            return
        begin = 0
        while True:
            end = begin + self._most_frames - (state.received_frames - state.decoded_frames)  # after the piece before
            yield VocoderHop(state, hop.mel[:, begin:end], hop.finalize and end >= frames)
            if end >= frames:
                return
            begin = end

    def _hop_pieces(self, hops: dict[int, VocoderHop]) -> Iterator[tuple[int, FloatArray]]:
        plans = {index: self._plan(hop) for index, hop in hops.items()}
        indices = list(plans)
        for group in group_rows([plans[index].frames for index in indices], self.buckets):
            members = [indices[position] for position in group]
            found = self._compute([hops[index] for index in members], [plans[index] for index in members])
            yield from zip(members, found, strict=True)

    def _plan(self, hop: VocoderHop) -> CausalPlan:
        return plan_call(_slot_state(hop), hop.mel.shape[1], hop.finalize, self._look_right, self._f0_look_right)

    def _compute(self, hops: Sequence[VocoderHop], plans: Sequence[CausalPlan]) -> list[FloatArray]:
        """A call of sessions that fit one bucket."""
        bucket = bucket_of(len(plans), max(plan.frames for plan in plans), self.buckets)
        assert bucket is not None
        states = [_slot_state(hop) for hop in hops]
        pack_rows(plans, [state.slot for state in states], self._host_meta.numpy())
        self._parts.meta.copy_(self._host_meta, non_blocking=True)
        mel = torch.cat([hop.mel.to(self.device, torch.float32) for hop in hops], dim=1)
        self._parts.new_mel[: mel.shape[1]] = mel.T
        assert bucket in self._graphs or not self._record, "call record() first"
        if bucket in self._graphs:
            self._graphs[bucket].replay()
        else:
            self._calls[bucket].launch()
        audio = self._read(self._calls[bucket].audio[: len(plans)])
        hift, pieces = self.plain.hift, []
        for row, (state, plan) in enumerate(zip(states, plans, strict=True)):
            begin, end = plan.samples(hift.unfinished_samples)
            pieces.append(audio[row, hift.first_sample + begin : hift.first_sample + end].copy())
            advance(state, plan)
        return pieces

    def _read(self, audio: Tensor) -> FloatArray:
        """The only wait for the device; needed without samples too: the next call overwrites host memory that is still being copied."""
        host = self._host_audio[: audio.numel()].view(audio.shape)
        host.copy_(audio, non_blocking=True)
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        return host.numpy()


def _layer_memory(on_gpu: bool) -> Callable[[Tensor, Tensor], LayerMemory]:
    if on_gpu:
        from bistream.mel2wav.causal.graphs.cuda.layer_memory import KernelLayerMemory  # noqa: PLC0415  (needs Triton)

        return KernelLayerMemory
    return partial(LayerMemory, positions_dim=POSITIONS_DIM)


def _slot_state(hop: VocoderHop) -> CausalSlotState:
    assert isinstance(hop.state, CausalSlotState) and not hop.state.closed and not hop.state.finalized
    return hop.state
