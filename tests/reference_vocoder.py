"""Upstream's joints between the pieces of a stream: no context, phase from zero in every call, the first 8 frames of the source replaced by
the cached ones, and a Hamming fade over all 8 frames with a gain of 1.08."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bistream.checkpoints.config import CheckpointConfig
from bistream.config import RuntimeConfig
from bistream.mel2wav.frames import SAMPLES_PER_MEL_FRAME, VOCODER_OVERLAP_SAMPLES
from bistream.mel2wav.stage import VocoderHop, VocoderStage, _Row
from bistream.mel2wav.state import VocoderState


class ReferenceVocoderStage(VocoderStage):
    """Without noise, which upstream draws anew in every call."""

    def __init__(self, config: RuntimeConfig, checkpoint: CheckpointConfig) -> None:
        super().__init__(config, checkpoint)
        self.noise_gain = 0 * self.noise_gain
        window = torch.hamming_window(2 * VOCODER_OVERLAP_SAMPLES, periodic=False, dtype=torch.float64).float()
        self.fade_in, self.fade_out = window[:VOCODER_OVERLAP_SAMPLES], window[VOCODER_OVERLAP_SAMPLES:]

    def _row(self, hop: VocoderHop, frames: int) -> _Row:
        assert isinstance(hop.state, VocoderState)
        return replace(super()._row(hop, frames), anchor=0, starts=True, fades=len(hop.state.withheld) == VOCODER_OVERLAP_SAMPLES)

    def _advance(self, state: VocoderState, row: _Row, mel: Tensor, source: Tensor, phase: Tensor, audio: Tensor) -> None:
        carried = state.phase
        super()._advance(state, row, mel, source, phase, audio)
        out = state.emitted_frames - row.first_frame
        state.phase, state.first_frame = carried, state.emitted_frames
        state.mel = mel[:, out:].clone()
        state.source = source[out * SAMPLES_PER_MEL_FRAME : row.frames * SAMPLES_PER_MEL_FRAME].clone()
