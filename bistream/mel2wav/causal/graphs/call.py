"""The whole causal vocoder for one bucket, as a graph records it: from the integers of a call to its audio and the next call's state.

The arithmetic is that of ``causal.stage``: f0 in float64, source and both Fourier transforms in float32, without TF32; the decoder between
them is ``decoder.Decoder`` in its own dtype. Rows are independent, and a row without new frames leaves its state as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bistream.gpu.precision import exact_float32
from bistream.mel2wav.causal.graphs.decoder import POSITIONS_DIM, Decoder, Edges
from bistream.mel2wav.causal.graphs.functions import Functions
from bistream.mel2wav.causal.graphs.meta import AHEAD, DECODED, ENDS, FIRST_PITCHED, PITCHED, SLOT, STARTS
from bistream.mel2wav.causal.layers import LayerMemory
from bistream.mel2wav.causal.network import CausalHiFT, Signal
from bistream.mel2wav.frames import SAMPLES_PER_MEL_FRAME
from bistream.mel2wav.hop_plan import Bucket

RECOMPILE_LIMIT = 64  # PyTorch's default of 8 counts the compilations of all stages of a process together


@dataclass(frozen=True)
class CausalSlots:
    """State of all sessions, one slot each; see ``causal.state.CausalState``. Zeros at the start of a session.

    mel: [slots, look_right, 80]. source: [slots, before + 480], from ``source_samples_before`` before the first frame that is not decoded.
    layers: in the decoder's dtype and layout; waves: float32; f0_layers, cycles: float64.
    """

    mel: Tensor
    source: Tensor
    layers: Tensor
    waves: Tensor
    f0_layers: Tensor
    cycles: Tensor

    def clear(self, slot: int) -> None:
        for store in (self.mel, self.source, self.layers, self.waves, self.f0_layers, self.cycles):
            store[slot] = 0


@dataclass(frozen=True)
class CausalParts:
    """Shared by the calls of all buckets. meta: int64 [rows, META_NUMBERS]. new_mel: [columns, 80]. noise: see ``CausalVocoderStage``.

    layer_memory: makes that of the decoder from what is stored and the new frames.
    """

    hift: CausalHiFT
    decoder: Decoder
    functions: Functions
    slots: CausalSlots
    meta: Tensor
    new_mel: Tensor
    noise: Tensor
    layer_memory: Callable[[Tensor, Tensor], LayerMemory]


class CausalCall:
    """The call of one bucket. audio: float32 [rows, samples], as ``CausalHiFT.decode`` returns it."""

    def __init__(self, parts: CausalParts, bucket: Bucket) -> None:
        self._parts = parts
        hift, device = parts.hift, parts.meta.device
        self._meta = parts.meta[: bucket.rows]
        self._frame = torch.arange(bucket.frames + hift.config.conv_pre_look_right, device=device)
        self._f0_frame = torch.arange(bucket.frames + hift.config.f0_look_right, device=device)
        self._sample = torch.arange(bucket.frames * SAMPLES_PER_MEL_FRAME, device=device)
        self._rates = [(1, 0), *((rate, int(rate == hift.rates[-1])) for rate in hift.rates)]
        self._positions = [torch.arange(bucket.frames * rate + extra, device=device) for rate, extra in self._rates]
        samples = bucket.frames * SAMPLES_PER_MEL_FRAME + hift.first_sample + hift.unfinished_samples
        self.audio = torch.zeros(bucket.rows, samples, device=device)

    def launch(self) -> None:
        """Queue everything on the current stream.

        ``meta`` is copied: the compiler compiles anew for every base of a view, and a tensor made in inference mode is not a view.
        """
        limit = torch._dynamo.config.patch(recompile_limit=RECOMPILE_LIMIT)
        with torch.inference_mode(), exact_float32(), limit:
            parts, meta = self._parts, self._meta.clone()
            mel = parts.functions.gather_mel(parts.slots.mel, parts.new_mel, meta, self._frame)
            signal = Signal(meta[:, DECODED], meta[:, STARTS] != 0, meta[:, ENDS] != 0)
            new_source = self._make_source(mel, meta)
            window = self._source_window(new_source, signal, meta)
            kept_source = self._known_source(new_source, self._after(signal), meta)
            self.audio.copy_(self._decode(mel, window, signal, meta))
            slot, look_right = meta[:, SLOT], parts.slots.mel.shape[1]
            rest = (meta[:, DECODED, None] + torch.arange(look_right, device=mel.device))[:, :, None].expand(-1, -1, mel.shape[2])
            parts.slots.mel.index_copy_(0, slot, mel.gather(1, rest))
            parts.slots.source.index_copy_(0, slot, kept_source)

    def _make_source(self, mel: Tensor, meta: Tensor) -> Tensor:
        """f0 and source [B, 480 F] of the new frames."""
        parts, slot = self._parts, meta[:, SLOT]
        slots, pitched = parts.slots, meta[:, PITCHED]
        index = (meta[:, AHEAD, None] + self._f0_frame).clamp(max=mel.shape[1] - 1)
        memory = LayerMemory(slots.f0_layers[slot], pitched)
        window = mel.gather(1, index[:, :, None].expand(-1, -1, mel.shape[2]))
        f0 = parts.hift.f0_predictor(window.transpose(1, 2), memory).float()
        place = meta[:, FIRST_PITCHED, None] * SAMPLES_PER_MEL_FRAME + self._sample
        cycles = slots.cycles[slot]
        source: Tensor
        sums: Tensor
        source, sums = parts.hift.m_source(f0, parts.noise[place % len(parts.noise)], cycles)
        last = (pitched - 1).clamp(min=0)[:, None, None].expand(-1, sums.shape[1], 1)
        slots.cycles.index_copy_(0, slot, torch.where(pitched[:, None] > 0, sums.gather(2, last)[..., 0], cycles))
        slots.f0_layers.index_copy_(0, slot, memory.kept())
        return source

    def _known_source(self, new: Tensor, position: Tensor, meta: Tensor) -> Tensor:
        """The source at ``position`` [B, N], counted from the first sample that is not decoded; unspecified where it is not known."""
        old, before = self._parts.slots.source[meta[:, SLOT]], self._parts.hift.source_samples_before
        first_new = meta[:, AHEAD, None] * SAMPLES_PER_MEL_FRAME
        of_old = old.gather(1, (position + before).clamp(0, old.shape[1] - 1))
        of_new = new.gather(1, (position - first_new).clamp(0, new.shape[1] - 1))
        return torch.where(position < first_new, of_old, of_new)

    def _after(self, signal: Signal) -> Tensor:
        """Positions of the source that the next call goes on from."""
        before = self._parts.hift.source_samples_before
        kept = torch.arange(-before, SAMPLES_PER_MEL_FRAME, device=self._meta.device)
        return signal.frames[:, None] * SAMPLES_PER_MEL_FRAME + kept

    def _source_window(self, new: Tensor, signal: Signal, meta: Tensor) -> Tensor:
        """What ``CausalHiFT.source_spectrum`` reads, reflected at the ends of a signal."""
        hift = self._parts.hift
        end = len(self._sample) + hift.source_samples_after
        position = torch.arange(-hift.source_samples_before, end, device=meta.device).expand(len(meta), -1)
        return self._known_source(new, hift.reflected(position, signal), meta)

    def _decode(self, mel: Tensor, source: Tensor, signal: Signal, meta: Tensor) -> Tensor:
        parts, slot = self._parts, meta[:, SLOT]
        hift, decoder, slots = parts.hift, parts.decoder, parts.slots
        masks = [
            (place < (signal.frames * rate + extra)[:, None])[..., None]
            for place, (rate, extra) in zip(self._positions, self._rates, strict=True)
        ]
        spectrum = hift.source_spectrum(source, signal).transpose(1, 2)
        spectrum = F.pad(spectrum, (0, decoder.spectrum_width - spectrum.shape[2]))
        memory = parts.layer_memory(slots.layers[slot], signal.frames)
        polar = decoder(mel, spectrum, masks, Edges(hift, memory, signal.starts))
        waves = parts.functions.polar_spectrum(hift.fourier, polar, decoder.post_bias, masks[-1]).transpose(1, 2)
        wave_memory = LayerMemory(slots.waves[slot], signal.frames)
        audio = hift.waveform(wave_memory.extend(waves, hift.spectrum_history, hift.rates[-1]), signal)
        slots.layers.index_copy_(0, slot, memory.kept())
        slots.waves.index_copy_(0, slot, wave_memory.kept())
        return audio


@torch.inference_mode()
def state_sizes(hift: CausalHiFT, decoder: Decoder) -> tuple[int, int, int]:
    """Numbers that decoder, last Fourier transform and f0 predictor keep between calls, of one session."""
    device = hift.fourier.forward_basis.device
    one, bins = torch.ones(1, dtype=torch.int64, device=device), hift.config.in_channels
    layers, f0_layers = LayerMemory(None, one, POSITIONS_DIM), LayerMemory(None, one)
    hift.f0_predictor(torch.zeros(1, bins, 1 + hift.config.f0_look_right, device=device), f0_layers)
    mel = torch.zeros(1, 1 + hift.config.conv_pre_look_right, bins, device=device)
    frames = hift.source_frames_before + hift.rates[-1] + 1
    spectrum = torch.zeros(1, frames, decoder.spectrum_width, device=device)
    sizes = [1, *(rate + int(rate == hift.rates[-1]) for rate in hift.rates)]
    masks = [torch.ones(1, size, 1, dtype=torch.bool, device=device) for size in sizes]
    decoder(mel, spectrum, masks, Edges(hift, layers, one.bool()))
    waves = hift.spectrum_history * (hift.config.istft_n_fft + 2)
    return math.prod(layers.kept().shape), waves, math.prod(f0_layers.kept().shape)
