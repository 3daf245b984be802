"""A vocoder with its state in slots whose calls run on the plain network: what the host decides, without the kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bistream.mel2wav.hop_plan import Bucket, RowPlan
from bistream.mel2wav.slotted import SlottedVocoderStage
from bistream.mel2wav.stage import VocoderHop, VocoderStage
from bistream.mel2wav.state import VocoderState
from tests.formats import SAMPLES_PER_MEL_FRAME


class PlainSlots(SlottedVocoderStage):
    """As the kernels, it knows of a row what its plan says, and reads and writes the slot of that."""

    def _compute(self, bucket: Bucket, plans: Sequence[RowPlan], new_mel: Tensor) -> Tensor:
        assert len(plans) <= bucket.rows and all(plan.frames <= bucket.frames for plan in plans)
        out = torch.full((sum(plan.due_frames for plan in plans) * SAMPLES_PER_MEL_FRAME,), float("nan"))
        begin = 0
        for plan in plans:
            end = begin + plan.frames - plan.context
            first = plan.out_frame * SAMPLES_PER_MEL_FRAME
            out[first : first + plan.due_frames * SAMPLES_PER_MEL_FRAME] = self._row_of(plan, new_mel[:, begin:end])
            begin = end
        return out

    def _row_of(self, plan: RowPlan, new_mel: Tensor) -> Tensor:
        slots, slot = self._slots, plan.slot
        state = VocoderState(
            key=plan.key,
            mel=slots.mel[slot, : plan.context].T.clone(),
            source=slots.source[slot, : plan.kept_source * SAMPLES_PER_MEL_FRAME].clone(),
            withheld=slots.withheld[slot, : (plan.context - plan.overlap) * SAMPLES_PER_MEL_FRAME].clone(),
            phase=slots.phase[slot].clone(),
            first_frame=plan.first_frame,
            emitted_frames=plan.first_frame + plan.overlap,
            received_frames=plan.first_frame + plan.context,
        )
        audio = VocoderStage.hop(self, [VocoderHop(state, new_mel, finalize=plan.emitted == plan.frames)])[0]
        assert (state.emitted_frames, state.first_frame) == (plan.first_frame + plan.emitted, plan.first_frame + plan.next_first)
        slots.mel[slot, : state.mel.shape[1]] = state.mel.T
        slots.source[slot, : len(state.source)] = state.source
        slots.withheld[slot, : len(state.withheld)] = state.withheld
        slots.phase[slot] = state.phase
        return torch.from_numpy(audio)
