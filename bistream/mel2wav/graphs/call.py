"""The whole vocoder for one bucket, as a graph records it: from the integers of a call to the due audio and the next call's state.

f0, phases, source and both Fourier transforms are computed in float32, without TF32: phases accumulate over a session. The rest uses
the decoder's dtype. Rows are independent, and values outside a row are replaced, not multiplied by zero, so a NaN stays in its row
and does not outlive its session.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bistream.gpu.precision import exact_float32
from bistream.mel2wav.frames import SAMPLES_PER_MEL_FRAME
from bistream.mel2wav.graphs.decoder import Decoder
from bistream.mel2wav.graphs.functions import Functions
from bistream.mel2wav.graphs.meta import FRAMES, META_NUMBERS, OVERLAP, SLOT, STARTS
from bistream.mel2wav.hift import HiFT, SourceStart
from bistream.mel2wav.hop_plan import Bucket
from bistream.mel2wav.slotted import STATE_FRAMES, Slots

RECOMPILE_LIMIT = 64  # PyTorch's default of 8 counts the compilations of all stages of a process together


class Buffers:
    """Inputs and outputs of all calls: integers, new frames, audio (a row per due frame; the last row takes all other frames)."""

    def __init__(self, rows: int, frames: int, mel_bins: int, device: torch.device) -> None:
        self.meta = torch.zeros(rows, META_NUMBERS, dtype=torch.int64, device=device)
        self.new_mel = torch.zeros(frames, mel_bins, device=device)
        self.out = torch.zeros(frames + 1, SAMPLES_PER_MEL_FRAME, device=device)


@dataclass(frozen=True)
class Parts:
    """Shared by the calls of all buckets. fades: [2, samples], of the new and of the withheld audio. benchmark: see ``exact_float32``."""

    hift: HiFT
    decoder: Decoder
    functions: Functions
    slots: Slots
    buffers: Buffers
    fades: Tensor
    noise_gain: Tensor
    benchmark: bool


class VocoderCall:
    """The call of one bucket."""

    def __init__(self, parts: Parts, bucket: Bucket) -> None:
        self._parts = parts
        self._meta = parts.buffers.meta[: bucket.rows]
        device = self._meta.device
        rates = [math.prod(parts.hift.config.upsample_rates[:stage]) for stage in range(len(parts.hift.config.upsample_rates) + 1)]
        self._rates = [(rate, int(rate == rates[-1])) for rate in rates]  # of the mel and of each stage; positions beyond frames * rate
        self._positions = [torch.arange(bucket.frames * rate + extra, device=device) for rate, extra in self._rates]
        fourier = parts.hift.fourier
        width = parts.decoder.spectrum_width - (fourier.n_fft + 2)
        self._forward = F.pad(fourier.forward_basis[:, 0].T, (0, width)).contiguous()  # [n_fft, channels]
        self._inverse = fourier.inverse_basis[:, 0].contiguous()  # [n_fft + 2, n_fft]

    def launch(self) -> None:
        """Queue everything on the current stream.

        ``meta`` is copied: the compiler compiles anew for every base of a view, and a tensor made in inference mode is not a view.
        """
        limit = torch._dynamo.config.patch(recompile_limit=RECOMPILE_LIMIT)
        with torch.inference_mode(), exact_float32(self._parts.benchmark), limit:
            parts, meta = self._parts, self._meta.clone()
            mel = parts.functions.gather_mel(parts.slots.mel, parts.buffers.new_mel, meta, self._positions[0])
            masks = self._masks(meta[:, FRAMES])
            source, phase = self._source(mel, masks[0], meta)
            audio = self._decode(mel, source, masks, meta)
            self._finish(mel, source, audio, phase, meta)

    def _masks(self, frames: Tensor) -> list[Tensor]:
        """Masks of real positions, at the rate of the mel and after each stage: bool [B, positions, 1]."""
        lengths = [frames * rate + extra for rate, extra in self._rates]
        return [(place < length[:, None])[..., None] for place, length in zip(self._positions, lengths, strict=True)]

    def _source(self, mel: Tensor, mask: Tensor, meta: Tensor) -> tuple[Tensor, Tensor]:
        """mel [B, T, 80] -> source [B, 480 T] and phases [B, H, T]."""
        parts = self._parts
        module = parts.hift.m_source
        start = SourceStart(parts.slots.phase[meta[:, SLOT]], meta[:, OVERLAP], meta[:, STARTS] != 0, meta[:, FRAMES])
        f0 = parts.hift.f0_predictor(mel.transpose(1, 2), mask.transpose(1, 2).float())
        advance = module.advance(f0)
        phase = module.frame_phase(advance, start)
        kept = parts.slots.source.view(-1, STATE_FRAMES, SAMPLES_PER_MEL_FRAME)
        source = parts.functions.make_source(module, f0, advance, phase.float(), start, parts.noise_gain, kept, meta)
        return source, phase

    def _decode(self, mel: Tensor, source: Tensor, masks: list[Tensor], meta: Tensor) -> Tensor:
        """Audio [B, 480 T], faded in from the withheld audio."""
        parts = self._parts
        hift, functions = parts.hift, parts.functions
        spectrum = functions.cut_windows(hift.fourier, source, meta) @ self._forward
        polar = parts.decoder(mel, spectrum, masks)
        spectrum = functions.polar_spectrum(hift.fourier, polar, parts.decoder.post_bias, masks[-1])
        audio: Tensor = functions.join_windows(hift, spectrum @ self._inverse, parts.fades, parts.slots.withheld, meta)
        return audio

    def _finish(self, mel: Tensor, source: Tensor, audio: Tensor, phase: Tensor, meta: Tensor) -> None:
        """Store the next call's state in the slots and the due audio in the output."""
        slots, out = self._parts.slots, self._parts.buffers.out
        *kept, place = self._parts.functions.keep(mel, source, audio, phase, slots.mel, slots.phase, out, meta)
        for memory, values in zip((slots.mel, slots.source, slots.withheld, slots.phase), kept, strict=True):
            memory.index_copy_(0, meta[:, SLOT], values)
        out.index_copy_(0, place.flatten(), audio.view(-1, SAMPLES_PER_MEL_FRAME))
