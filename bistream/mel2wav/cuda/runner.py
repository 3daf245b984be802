"""The vocoder stage on a CUDA GPU: state of all sessions in slots, one recorded graph per size. Takes the place of ``VocoderStage``.

Convolutions run in 16 bit with float32 sums; f0, phases, source and Fourier transforms stay in float32, since phases add up
over a whole session. Offline synthesis, and calls larger than the largest bucket, run on the plain network.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from bistream.config import CheckpointConfig, RuntimeConfig
from bistream.errors import BusyError
from bistream.gpu.recording import GraphRecorder
from bistream.mel2wav.cuda.batch import BUCKETS, Bucket, RowPlan, bucket_of, group_rows, pack_rows
from bistream.mel2wav.cuda.launches import VocoderCall
from bistream.mel2wav.cuda.memory import Slots, Workspace
from bistream.mel2wav.cuda.weights import pack_weights
from bistream.mel2wav.noise import key_of_seed
from bistream.mel2wav.stage import CONTEXT_FRAMES, VocoderHop, VocoderStage
from bistream.mel2wav.state import VocoderState
from bistream.rates import SAMPLES_PER_MEL_FRAME, VOCODER_OVERLAP_FRAMES
from bistream.types import FloatArray

_log = logging.getLogger(__name__)

_STATE_FRAMES = CONTEXT_FRAMES + VOCODER_OVERLAP_FRAMES
_SCRATCH_SLOT = 0  # rows without a session write here


@dataclass
class CudaVocoderState(VocoderState):
    """Its tensors are empty; mel, source, withheld audio and phase are in ``slot`` until it is closed."""

    slot: int = _SCRATCH_SLOT
    free_slots: list[int] = field(default_factory=list)

    def close(self) -> None:
        """Give the slot back. Idempotent."""
        if not self.closed:
            self.free_slots.append(self.slot)
        super().close()


class CudaVocoderStage(VocoderStage):
    """``record`` False launches the same kernels one by one (tests). dtype: of the convolutions."""

    def __init__(
        self, config: RuntimeConfig, checkpoint: CheckpointConfig, *, dtype: torch.dtype = torch.float16, record: bool = True,
        dependent_launch: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(config, checkpoint)
        self._slots = Slots(config.max_sessions + 1, _STATE_FRAMES, self.harmonics, self.device)
        self._free_slots = list(range(config.max_sessions, _SCRATCH_SLOT, -1))
        self._record = record
        pinned = self.device.type == "cuda"
        self._space = Workspace(self.hift, BUCKETS, dtype, self.device)
        self._host_meta = torch.zeros_like(self._space.meta, device="cpu").pin_memory() if pinned else torch.zeros_like(self._space.meta)
        self._host_out = torch.zeros(self._space.out.shape, pin_memory=pinned)
        weights = pack_weights(self.hift, dtype)
        gain = torch.as_tensor(self.noise_gain, dtype=torch.float32, device=self.device)
        self._calls = {
            bucket: VocoderCall(self.hift, weights, self._slots, self._space, bucket, self.fade_in, self.fade_out, gain, dependent_launch)
            for bucket in BUCKETS
        }
        self._graphs: dict[Bucket, torch.cuda.CUDAGraph] = {}
        self._recorder = GraphRecorder(self.device)

    def record(self) -> None:
        """Record the graphs of all buckets (a few seconds, and the kernels' compilation when it is the first time)."""
        began = time.monotonic()
        for bucket in BUCKETS:
            self._space.meta.zero_()
            self._record_call(bucket)
        _log.info("vocoder: %d graphs ready after %.1f s", len(self._graphs), time.monotonic() - began)

    def open(self, seed: int) -> CudaVocoderState:
        """As ``VocoderStage.open``. Raises ``BusyError`` when ``max_sessions`` are open."""
        if not self._free_slots:
            raise BusyError("The vocoder has no room for another session; try again later.")
        nothing = torch.empty(0)
        slot = self._free_slots.pop()
        self._slots.phase[slot] = 0.0  # the slot's last session left its own; the rest is not read before it is written
        return CudaVocoderState(key_of_seed(seed), nothing, nothing, nothing, nothing, slot=slot, free_slots=self._free_slots)

    @torch.inference_mode()
    def hop(self, hops: Sequence[VocoderHop]) -> list[FloatArray]:
        """As ``VocoderStage.hop``."""
        plain = [index for index, hop in enumerate(hops) if not isinstance(hop.state, CudaVocoderState)]
        waveforms: list[FloatArray] = [np.zeros(0, np.float32)] * len(hops)
        for index, waveform in zip(plain, super().hop([hops[index] for index in plain]) if plain else [], strict=True):
            waveforms[index] = waveform
        frames = {index: _frames(hop) for index, hop in enumerate(hops) if index not in set(plain)}
        busy = [index for index, count in frames.items() if count and (hops[index].mel.shape[1] or hops[index].finalize)]
        large = [index for index in busy if bucket_of(1, frames[index]) is None]
        for index in large:
            waveforms[index] = self._hop_plain(hops[index])
        small = [index for index in busy if index not in set(large)]
        for group in group_rows([frames[index] for index in small]):
            members = [small[position] for position in group]
            for index, waveform in zip(members, self._hop_recorded([hops[index] for index in members]), strict=True):
                waveforms[index] = waveform
        for hop in hops:
            hop.state.finalized |= hop.finalize
        return waveforms

    def synthesize(self, mel: Tensor, seed: int, speed: float = 1.0) -> FloatArray:
        """As ``VocoderStage.synthesize``, on the plain network."""
        if speed != 1.0:
            mel = torch.nn.functional.interpolate(mel[None], size=int(mel.shape[1] / speed), mode="linear")[0]
        state = super().open(seed)
        waveform = super().hop([VocoderHop(state, mel, finalize=True)])[0]
        state.close()
        return waveform

    def _hop_recorded(self, hops: Sequence[VocoderHop]) -> list[FloatArray]:
        states = [_cuda_state(hop) for hop in hops]
        plans, out_frames = [], 0
        for hop, state in zip(hops, states, strict=True):
            plan = _plan(hop, state, out_frames)
            plans.append(plan)
            out_frames += plan.emitted - plan.overlap
        bucket = bucket_of(len(plans), max(plan.frames for plan in plans))
        assert bucket is not None
        pack_rows(plans, self._host_meta.numpy(), self._space.rates)
        self._space.meta.copy_(self._host_meta, non_blocking=True)
        new = torch.cat([hop.mel.to(self.device, torch.float32) for hop in hops], dim=1)
        self._space.new_mel[:, : new.shape[1]] = new
        assert bucket in self._graphs or not self._record, "record() comes first"
        if bucket in self._graphs:
            self._graphs[bucket].replay()
        else:
            self._calls[bucket].launch()
        samples = out_frames * SAMPLES_PER_MEL_FRAME
        self._host_out[:samples].copy_(self._space.out[:samples])  # waits for the device
        audio = self._host_out.numpy()
        pieces = []
        for plan, state in zip(plans, states, strict=True):
            begin = plan.out_frame * SAMPLES_PER_MEL_FRAME
            pieces.append(audio[begin : begin + (plan.emitted - plan.overlap) * SAMPLES_PER_MEL_FRAME].copy())
            state.received_frames = plan.first_frame + plan.frames
            state.emitted_frames = plan.first_frame + plan.emitted
            state.first_frame = plan.first_frame + plan.next_first
        return pieces

    def _hop_plain(self, hop: VocoderHop) -> FloatArray:
        """A call that is longer than every bucket: the session's state leaves its slot and comes back."""
        state, slots = _cuda_state(hop), self._slots
        kept, out = state.received_frames - state.first_frame, state.emitted_frames - state.first_frame
        plain = VocoderState(
            key=state.key,
            mel=slots.mel[state.slot, :kept].T.clone(),
            source=slots.source[state.slot, : out * SAMPLES_PER_MEL_FRAME].clone(),
            withheld=slots.withheld[state.slot, : (kept - out) * SAMPLES_PER_MEL_FRAME].clone(),
            phase=slots.phase[state.slot].clone(),
            first_frame=state.first_frame,
            emitted_frames=state.emitted_frames,
            received_frames=state.received_frames,
        )
        waveform = super().hop([VocoderHop(plain, hop.mel, hop.finalize)])[0]
        state.first_frame, state.emitted_frames, state.received_frames = plain.first_frame, plain.emitted_frames, plain.received_frames
        if not hop.finalize:
            slots.mel[state.slot, : plain.mel.shape[1]] = plain.mel.T
            slots.source[state.slot, : plain.source.shape[0]] = plain.source
            slots.withheld[state.slot, : plain.withheld.shape[0]] = plain.withheld
            slots.phase[state.slot] = plain.phase
        return waveform

    def _record_call(self, bucket: Bucket) -> None:
        """The rows on the device must be empty."""
        with torch.inference_mode():
            self._graphs[bucket] = self._recorder.record(self._calls[bucket].launch)


def _cuda_state(hop: VocoderHop) -> CudaVocoderState:
    assert isinstance(hop.state, CudaVocoderState) and not hop.state.closed and not hop.state.finalized
    return hop.state


def _frames(hop: VocoderHop) -> int:
    """Frames of a session's call: what it kept, and what is new."""
    return hop.state.received_frames - hop.state.first_frame + hop.mel.shape[1]


def _plan(hop: VocoderHop, state: CudaVocoderState, out_frame: int) -> RowPlan:
    """The integers of ``VocoderStage`` in its smooth mode."""
    frames = _frames(hop)
    overlap = state.emitted_frames - state.first_frame
    withheld = 0 if hop.finalize else VOCODER_OVERLAP_FRAMES
    emitted = max(overlap, frames - withheld)
    return RowPlan(
        slot=state.slot,
        frames=frames,
        context=state.received_frames - state.first_frame,
        overlap=overlap,
        first_frame=state.first_frame,
        starts=state.first_frame == 0,
        fades=state.received_frames - state.emitted_frames == VOCODER_OVERLAP_FRAMES and state.emitted_frames > 0,
        kept_source=overlap,
        out_frame=out_frame,
        emitted=emitted,
        next_first=max(0, emitted - CONTEXT_FRAMES),
        key=state.key,
    )
