"""Incremental, batched vocoder. In: new mel frames of many sessions. Out: one waveform piece per session. Called by ``token2wav``.

A call reads the frames from ``first_frame`` on: some context whose audio was emitted, the frames whose audio the previous call
withheld (its last 8 frames lacked their right context), and the new frames::

    last call     ....context....|---new frames------------|~withheld~|
    this call                      ....context.............|~overlap~~|---new frames--------|~withheld~|
    audio out                                              [fade][....................]

Both sides of a joint are computed from the same source signal, which continues across calls: its phase is carried, its noise is
indexed by absolute sample, and f0 is used only where it had the five frames of context that it needs (unlike upstream's). With
CONTEXT_FRAMES to the left the new side equals one call over the whole mel, so the fade (raised cosine, gain exactly 1: the two
sides are nearly the same signal) runs at the beginning of the overlap, where the old side is most accurate, and ends after
FADE_FRAMES.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bistream.checkpoints.config import CheckpointConfig
from bistream.config import RuntimeConfig
from bistream.gpu.device import resolve_device
from bistream.gpu.steps import Steps, finish
from bistream.mel2wav.frames import SAMPLES_PER_MEL_FRAME, VOCODER_OVERLAP_FRAMES, VOCODER_OVERLAP_SAMPLES
from bistream.mel2wav.grouping import group_similar
from bistream.mel2wav.hift import RowMasks, SourceStart
from bistream.mel2wav.noise import key_of_seed, normal_noise
from bistream.mel2wav.offline import whole_utterance
from bistream.mel2wav.state import VocoderSessionState, VocoderState
from bistream.mel2wav.weights import load_hift
from bistream.types import FloatArray

# Signal-to-error ratio of joined audio against one call over the whole mel, with random weights: context 4: 3 dB, 5: 37-48 dB,
# 8 and more: 44-49 dB; upstream's method: -1 dB, because its harmonics restart in every call.
CONTEXT_FRAMES = 8
# The f0 of the old side's last five frames differs from the new side's; a fade of 1 frame gives 49 dB, 2: 44, 4: 37, 8: 19.
FADE_FRAMES = 2
# Frames of an utterance that one step of offline synthesis decodes, besides its halo of 17 frames on each side.
OFFLINE_PIECE_FRAMES = {"cpu": 50, "cuda": 1000}


@dataclass(frozen=True)
class VocoderHop:
    """mel: float32 [80, M] new frames, M may be 0. finalize: no frames follow; all withheld audio is emitted."""

    state: VocoderSessionState
    mel: Tensor
    finalize: bool


@dataclass(frozen=True)
class _Row:
    """Integers of one session in a call; frames count from the first frame of the call."""

    frames: int
    anchor: int  # first frame whose source is computed with the carried phase
    overlap: int  # first frame that is not emitted yet
    first_frame: int  # of the session
    starts: bool
    fades: bool
    finalize: bool


class VocoderStage:
    """All sessions share the weights; each has a ``VocoderState``. Calls must not overlap (one worker thread)."""

    joins_exactly = False

    def __init__(self, config: RuntimeConfig, checkpoint: CheckpointConfig) -> None:
        self.device = resolve_device(config.device)
        self.hift = load_hift(config.model_dir, checkpoint.vocoder, self.device)
        self.noise_gain = self.hift.m_source.noise_gain()
        self.harmonics = checkpoint.vocoder.nb_harmonics + 1
        fade_in, fade_out = _smooth_fade()
        self.fade_in, self.fade_out = fade_in.to(self.device), fade_out.to(self.device)

    @property
    def slots(self) -> tuple[int, int] | None:
        """Slots of state in use and in all; None: sessions are bounded by nothing here."""
        return None

    def open(self, seed: int) -> VocoderState:
        """State of a new session. The same seed gives the same noise; only its lowest 64 bits count."""
        return VocoderState(
            key=key_of_seed(seed),
            mel=torch.zeros(self.hift.config.in_channels, 0, device=self.device),
            source=torch.zeros(0, device=self.device),
            withheld=torch.zeros(0, device=self.device),
            phase=torch.zeros(self.harmonics, dtype=torch.float64, device=self.device),
        )

    @torch.inference_mode()
    def hop(self, hops: Sequence[VocoderHop]) -> list[FloatArray]:
        """One waveform piece (float32 [N], N a multiple of 480, possibly 0) per hop, in order; a session occurs at most once."""
        waveforms: list[FloatArray] = [np.zeros(0, np.float32)] * len(hops)
        mels = [torch.cat([_state_of(hop).mel, hop.mel.to(self.device, torch.float32)], dim=1) for hop in hops]
        busy = [index for index, hop in enumerate(hops) if mels[index].shape[1] and (hop.mel.shape[1] or hop.finalize)]
        for group in group_similar([mels[index].shape[1] for index in busy]):
            members = [busy[position] for position in group]
            pieces = self._hop_group([hops[index] for index in members], [mels[index] for index in members])
            for index, piece in zip(members, pieces, strict=True):
                waveforms[index] = piece
        for hop in hops:
            hop.state.finalized |= hop.finalize
        return waveforms

    def synthesize(self, mel: Tensor, seed: int, speed: float = 1.0) -> FloatArray:
        """Offline: mel [80, T] -> waveform [480 T']. speed stretches the mel linearly, T' = floor(T / speed), as upstream does."""
        with torch.inference_mode():
            return finish(self.synthesis(mel, seed, speed))

    def synthesis(self, mel: Tensor, seed: int, speed: float = 1.0) -> Steps[FloatArray]:
        """``synthesize`` in steps, between which hops may run: it holds no session's state. Run it in inference mode."""
        mel = mel.to(self.device, torch.float32)
        if speed != 1.0:
            mel = F.interpolate(mel[None], size=int(mel.shape[1] / speed), mode="linear")[0]
        if mel.shape[1] == 0:
            return np.zeros(0, np.float32)
        piece_frames = OFFLINE_PIECE_FRAMES[self.device.type]
        audio = yield from whole_utterance(self.hift, mel, key_of_seed(seed), self.noise_gain, piece_frames)
        waveform: FloatArray = torch.cat(audio).cpu().numpy()
        return waveform

    def _hop_group(self, hops: Sequence[VocoderHop], mels: Sequence[Tensor]) -> list[FloatArray]:
        """Sessions of similar length in one padded network call."""
        rows = [self._row(hop, mel.shape[1]) for hop, mel in zip(hops, mels, strict=True)]
        states = [_state_of(hop) for hop in hops]
        size = max(row.frames for row in rows)
        mel = torch.stack([F.pad(item, (0, size - item.shape[1])) for item in mels])  # [B, 80, T]
        frames = self._integers([row.frames for row in rows])
        ragged = any(row.frames != size for row in rows)
        masks = RowMasks(frames, size, self.hift.config) if ragged else None
        source, phase = self._source(mel, frames, masks, rows, states)
        audio = self._blend(self.hift.decode(mel, source, frames, masks), rows, states)
        for index, (state, row) in enumerate(zip(states, rows, strict=True)):
            self._advance(state, row, mels[index], source[index], phase[index], audio[index])
        on_host = audio.cpu().numpy()  # the only wait for the device
        spans = [(row.overlap * SAMPLES_PER_MEL_FRAME, (state.emitted_frames - row.first_frame) * SAMPLES_PER_MEL_FRAME)
                 for row, state in zip(rows, states, strict=True)]  # fmt: skip
        return [on_host[index, begin:end].copy() for index, (begin, end) in enumerate(spans)]

    def _row(self, hop: VocoderHop, frames: int) -> _Row:
        state = _state_of(hop)
        assert not state.closed and not state.finalized
        overlap = state.emitted_frames - state.first_frame
        return _Row(
            frames=frames,
            anchor=overlap,
            overlap=overlap,
            first_frame=state.first_frame,
            starts=state.first_frame == 0,
            fades=state.withheld.shape[0] == VOCODER_OVERLAP_SAMPLES and state.emitted_frames > 0,
            finalize=hop.finalize,
        )

    def _source(
        self, mel: Tensor, frames: Tensor, masks: RowMasks | None, rows: Sequence[_Row], states: Sequence[VocoderState]
    ) -> tuple[Tensor, Tensor]:
        """Source [B, 480 T], its beginning replaced by the cached samples, and phases [B, H, T]."""
        num_samples = mel.shape[2] * SAMPLES_PER_MEL_FRAME
        start = SourceStart(
            phase=torch.stack([state.phase for state in states]),
            anchor=self._integers([row.anchor for row in rows]),
            starts=self._integers([row.starts for row in rows]).bool(),
            frames=frames,
        )
        first_sample = self._integers([row.first_frame * SAMPLES_PER_MEL_FRAME for row in rows])
        noise = normal_noise(self._integers([state.key for state in states]), first_sample, num_samples) * self.noise_gain
        source: Tensor
        source, phase = self.hift.m_source(self.hift.f0(mel, masks), noise, start)
        cached = torch.stack([F.pad(state.source, (0, num_samples - state.source.shape[0])) for state in states])
        kept = self._integers([state.source.shape[0] for state in states])
        position = torch.arange(num_samples, device=self.device)
        return torch.where(position < kept[:, None], cached, source), phase

    def _blend(self, audio: Tensor, rows: Sequence[_Row], states: Sequence[VocoderState]) -> Tensor:
        """Fade [B, 480 T] in from the withheld audio of the previous calls."""
        if not any(row.fades for row in rows):
            return audio
        size = audio.shape[1]
        old = torch.stack(
            [
                F.pad(state.withheld, (begin, size - begin - VOCODER_OVERLAP_SAMPLES)) if row.fades else torch.zeros_like(audio[0])
                for row, state in zip(rows, states, strict=True)
                for begin in [row.overlap * SAMPLES_PER_MEL_FRAME]
            ]
        )
        begin = self._integers([row.overlap * SAMPLES_PER_MEL_FRAME if row.fades else size for row in rows])
        position = torch.arange(size, device=self.device) - begin[:, None]  # [B, N], negative before the joint
        inside = (position >= 0) & (position < VOCODER_OVERLAP_SAMPLES)
        index = position.clamp(0, VOCODER_OVERLAP_SAMPLES - 1)
        return torch.where(inside, audio * self.fade_in[index] + old * self.fade_out[index], audio)

    def _advance(self, state: VocoderState, row: _Row, mel: Tensor, source: Tensor, phase: Tensor, audio: Tensor) -> None:
        """Advance the session's counters past this call and keep what the next one needs (copies, so that the batch is freed)."""
        state.received_frames = row.first_frame + row.frames
        withheld = 0 if row.finalize else VOCODER_OVERLAP_FRAMES
        emitted = max(state.emitted_frames, state.received_frames - withheld)
        if emitted > state.emitted_frames:
            state.phase = phase[:, emitted - 1 - row.first_frame].clone()
        state.emitted_frames = emitted
        state.first_frame = max(row.first_frame, emitted - CONTEXT_FRAMES)
        begin = state.first_frame - row.first_frame
        out = emitted - row.first_frame
        state.mel = mel[:, begin:].clone()
        state.source = source[begin * SAMPLES_PER_MEL_FRAME : out * SAMPLES_PER_MEL_FRAME].clone()
        state.withheld = audio[out * SAMPLES_PER_MEL_FRAME : row.frames * SAMPLES_PER_MEL_FRAME].clone()

    def _integers(self, values: Sequence[int] | Sequence[tuple[int, int]]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64).to(self.device, non_blocking=True)


def _state_of(hop: VocoderHop) -> VocoderState:
    assert isinstance(hop.state, VocoderState), "a session of another vocoder"
    return hop.state


def _smooth_fade() -> tuple[Tensor, Tensor]:
    """Raised cosine over FADE_FRAMES, then the new side alone; the two weights add up to 1."""
    length = FADE_FRAMES * SAMPLES_PER_MEL_FRAME
    ramp = 0.5 - 0.5 * torch.cos(math.pi * (torch.arange(length, dtype=torch.float64) + 0.5) / length)
    fade_in = F.pad(ramp, (0, VOCODER_OVERLAP_SAMPLES - length), value=1.0).float()
    return fade_in, 1.0 - fade_in
