"""A vocoder stage with session state in slots on the device, so that calls of fixed sizes can be recorded. Base of ``cuda``.

The host decides which sessions share a call, what each row does and how far each session has advanced; a subclass computes the call
on the device in ``_compute``. Offline synthesis, and calls larger than the largest bucket, run on the plain network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from bistream.checkpoints.config import CheckpointConfig
from bistream.config import RuntimeConfig
from bistream.errors import BusyError
from bistream.gpu.precision import exact_float32
from bistream.gpu.steps import Steps
from bistream.mel2wav.frames import SAMPLES_PER_MEL_FRAME, VOCODER_OVERLAP_FRAMES, VOCODER_OVERLAP_SAMPLES
from bistream.mel2wav.hop_plan import BUCKETS, Bucket, RowPlan, bucket_of, group_rows, plan_row
from bistream.mel2wav.noise import key_of_seed
from bistream.mel2wav.stage import CONTEXT_FRAMES, VocoderHop, VocoderStage
from bistream.mel2wav.state import VocoderState
from bistream.types import FloatArray

STATE_FRAMES = CONTEXT_FRAMES + VOCODER_OVERLAP_FRAMES
SCRATCH_SLOT = 0  # padding rows write here


class Slots:
    """State of all sessions, one slot each: ``STATE_FRAMES`` kept frames of mel and source, withheld audio, phases."""

    def __init__(self, count: int, mel_bins: int, harmonics: int, device: torch.device) -> None:
        self.mel = torch.zeros(count, STATE_FRAMES, mel_bins, device=device)
        self.source = torch.zeros(count, STATE_FRAMES * SAMPLES_PER_MEL_FRAME, device=device)
        self.withheld = torch.zeros(count, VOCODER_OVERLAP_SAMPLES, device=device)
        self.phase = torch.zeros(count, harmonics, dtype=torch.float64, device=device)


@dataclass
class SlotState(VocoderState):
    """Its tensors are empty; mel, source, withheld audio and phase are in ``slot`` until it is closed."""

    slot: int = SCRATCH_SLOT
    free_slots: list[int] = field(default_factory=list)

    def close(self) -> None:
        """Give the slot back. Idempotent."""
        if not self.closed:
            self.free_slots.append(self.slot)
        super().close()


class SlottedVocoderStage(VocoderStage):
    """A subclass computes one call in ``_compute``."""

    def __init__(self, config: RuntimeConfig, checkpoint: CheckpointConfig) -> None:
        super().__init__(config, checkpoint)
        self._slots = Slots(config.max_sessions + 1, checkpoint.vocoder.in_channels, self.harmonics, self.device)
        self._free_slots = list(range(config.max_sessions, SCRATCH_SLOT, -1))
        frames = max(bucket.rows * bucket.frames for bucket in BUCKETS)
        self._host_out = torch.zeros(frames * SAMPLES_PER_MEL_FRAME, pin_memory=self.device.type == "cuda")

    def _compute(self, bucket: Bucket, plans: Sequence[RowPlan], new_mel: Tensor) -> Tensor:
        """Queue one call, which advances the state in the slots. new_mel: [bins, columns], the new frames of the rows, concatenated.

        Returns a tensor on the device that begins with the due audio, each row's from frame ``out_frame`` on.
        """
        raise NotImplementedError

    @property
    def slots(self) -> tuple[int, int]:
        total = self._slots.phase.shape[0] - 1  # without the scratch slot
        return total - len(self._free_slots), total

    def open(self, seed: int) -> SlotState:
        """As ``VocoderStage.open``. Raises ``BusyError`` when ``max_sessions`` are open."""
        if not self._free_slots:
            raise BusyError("The vocoder has no room for another session; try again later.")
        nothing = torch.empty(0)
        slot = self._free_slots.pop()
        self._slots.phase[slot] = 0.0  # the slot's last session left its own; the rest is written before it is read
        return SlotState(key_of_seed(seed), nothing, nothing, nothing, nothing, slot=slot, free_slots=self._free_slots)

    @torch.inference_mode()
    def hop(self, hops: Sequence[VocoderHop]) -> list[FloatArray]:
        """As ``VocoderStage.hop``."""
        waveforms: list[FloatArray] = [np.zeros(0, np.float32)] * len(hops)
        frames = {index: _frames(hop) for index, hop in enumerate(hops)}
        busy = [index for index, count in frames.items() if count and (hops[index].mel.shape[1] or hops[index].finalize)]
        large = {index for index in busy if bucket_of(1, frames[index]) is None}
        for index in large:
            waveforms[index] = self._hop_plain(hops[index])
        small = [index for index in busy if index not in large]
        for group in group_rows([frames[index] for index in small]):
            members = [small[position] for position in group]
            for index, waveform in zip(members, self._hop_slots([hops[index] for index in members]), strict=True):
                waveforms[index] = waveform
        for hop in hops:
            hop.state.finalized |= hop.finalize
        return waveforms

    def synthesis(self, mel: Tensor, seed: int, speed: float = 1.0) -> Steps[FloatArray]:
        """As ``VocoderStage.synthesis``, on the plain network."""
        steps = super().synthesis(mel, seed, speed)
        while True:
            with exact_float32():  # a global setting, which must not hold while hops run between the steps
                try:
                    next(steps)
                except StopIteration as end:
                    waveform: FloatArray = end.value
                    return waveform
            yield

    def _hop_slots(self, hops: Sequence[VocoderHop]) -> list[FloatArray]:
        """A hop of sessions that fit one bucket."""
        states = [_slot_state(hop) for hop in hops]
        plans: list[RowPlan] = []
        out_frames = 0
        for hop, state in zip(hops, states, strict=True):
            plans.append(plan_row(state, hop.mel.shape[1], hop.finalize, CONTEXT_FRAMES, out_frames))
            out_frames += plans[-1].due_frames
        bucket = bucket_of(len(plans), max(plan.frames for plan in plans))
        assert bucket is not None
        out = self._compute(bucket, plans, torch.cat([hop.mel.to(self.device, torch.float32) for hop in hops], dim=1))
        audio = self._read(out, out_frames * SAMPLES_PER_MEL_FRAME)
        pieces = []
        for plan, state in zip(plans, states, strict=True):
            begin = plan.out_frame * SAMPLES_PER_MEL_FRAME
            pieces.append(audio[begin : begin + plan.due_frames * SAMPLES_PER_MEL_FRAME].copy())
            state.received_frames = plan.first_frame + plan.frames
            state.emitted_frames = plan.first_frame + plan.emitted
            state.first_frame = plan.first_frame + plan.next_first
        return pieces

    def _read(self, out: Tensor, samples: int) -> FloatArray:
        """The only wait for the device; needed without samples too: the next call overwrites host memory that is still being copied."""
        self._host_out[:samples].copy_(out[:samples], non_blocking=True)
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        return self._host_out.numpy()

    def _hop_plain(self, hop: VocoderHop) -> FloatArray:
        """A call that is longer than every bucket: the session's state is copied out of its slot and back."""
        state, slots = _slot_state(hop), self._slots
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
        with exact_float32():
            waveform = super().hop([VocoderHop(plain, hop.mel, hop.finalize)])[0]
        state.first_frame, state.emitted_frames, state.received_frames = plain.first_frame, plain.emitted_frames, plain.received_frames
        if not hop.finalize:
            slots.mel[state.slot, : plain.mel.shape[1]] = plain.mel.T
            slots.source[state.slot, : plain.source.shape[0]] = plain.source
            slots.withheld[state.slot, : plain.withheld.shape[0]] = plain.withheld
            slots.phase[state.slot] = plain.phase
        return waveform


def _slot_state(hop: VocoderHop) -> SlotState:
    assert isinstance(hop.state, SlotState) and not hop.state.closed and not hop.state.finalized
    return hop.state


def _frames(hop: VocoderHop) -> int:
    """Frames of a session's call, kept and new."""
    state = hop.state
    assert isinstance(state, SlotState)
    return state.received_frames - state.first_frame + hop.mel.shape[1]
