"""The operations between the convolutions: small tensor functions, each of which ``torch.compile`` turns into one or two GPU kernels.

Sizes are dynamic, so that a function is compiled once for all buckets. Activations are [B, positions, channels] (or with the last two
swapped; vectors and masks are shaped to match) in the dtype of the convolutions; all arithmetic is in float32. Biases are added here
rather than by the convolutions, since PyTorch would add them in a separate pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bistream.mel2wav.fourier import FourierFrames
from bistream.mel2wav.frames import SAMPLES_PER_MEL_FRAME, VOCODER_OVERLAP_FRAMES, VOCODER_OVERLAP_SAMPLES
from bistream.mel2wav.graphs.meta import (
    CONTEXT,
    EMITTED,
    FADES,
    FIRST_FRAME,
    FRAMES,
    KEPT_SOURCE,
    KEY,
    NEW,
    NEXT_FIRST,
    OUT_FRAME,
    OVERLAP,
    SLOT,
)
from bistream.mel2wav.hift import MAX_MAGNITUDE, SNAKE_EPSILON, HarmonicSource, HiFT, SourceStart
from bistream.mel2wav.noise import normal_noise


def _column(meta: Tensor, number: int) -> Tensor:
    return meta[:, number, None]  # [B, 1]


def _snake(x: Tensor, alpha: Tensor) -> Tensor:
    wave = torch.sin(x * alpha)
    return x + wave * wave / (alpha + SNAKE_EPSILON)


def snake(x: Tensor, bias: Tensor, alpha: Tensor, mask: Tensor) -> Tensor:
    """Activation of x + bias, zero outside the mask."""
    return torch.where(mask, _snake(x.float() + bias, alpha), 0.0).to(x.dtype)


def add_and_snake(parts: list[Tensor], bias: Tensor, alphas: list[Tensor], mask: Tensor) -> list[Tensor]:
    """The sum of ``parts`` and bias, then its activations, one for each of ``alphas``."""
    total = sum((part.float() for part in parts[1:]), parts[0].float()) + bias
    active = [torch.where(mask, _snake(total, alpha), 0.0) for alpha in alphas]
    return [value.to(parts[0].dtype) for value in (total, *active)]


def add_and_leak(parts: list[Tensor], bias: Tensor, share: Tensor, slope: Tensor, mask: Tensor) -> Tensor:
    """Leaky ReLU of the sum of ``parts`` and bias times ``share``, zero outside the mask."""
    total = (sum((part.float() for part in parts[1:]), parts[0].float()) + bias) * share
    return torch.where(mask, torch.where(total > 0, total, total * slope), 0.0).to(parts[0].dtype)


def gather_mel(slot_mel: Tensor, new_mel: Tensor, meta: Tensor, frame: Tensor) -> Tensor:
    """Kept and new frames of every row: [B, T, 80], zero beyond a row's end. slot_mel: [slots, kept, 80]; new_mel: [columns, 80]."""
    kept = slot_mel[_column(meta, SLOT), frame.clamp(max=slot_mel.shape[1] - 1)]
    column = _column(meta, NEW) + frame - _column(meta, CONTEXT)
    new = new_mel[column.clamp(0, new_mel.shape[0] - 1)]
    is_kept, is_real = frame < _column(meta, CONTEXT), frame < _column(meta, FRAMES)
    return torch.where(is_kept[..., None], kept, torch.where(is_real[..., None], new, 0.0))


def make_source(
    module: HarmonicSource, f0: Tensor, advance: Tensor, phase: Tensor, start: SourceStart, gain: Tensor, slot_source: Tensor, meta: Tensor
) -> Tensor:
    """Source [B, 480 T]; its first frames are the kept ones. slot_source: [slots, kept frames, 480]."""
    rows, frames = f0.shape
    first_sample = meta[:, FIRST_FRAME] * SAMPLES_PER_MEL_FRAME
    noise = normal_noise(meta[:, KEY : KEY + 2], first_sample, frames * SAMPLES_PER_MEL_FRAME) * gain
    source = module.signal(f0, advance, phase, noise, start).view(rows, frames, SAMPLES_PER_MEL_FRAME)
    frame = torch.arange(frames, device=f0.device)
    kept = slot_source[_column(meta, SLOT), frame.clamp(max=slot_source.shape[1] - 1)]
    return torch.where((frame < _column(meta, KEPT_SOURCE))[..., None], kept, source).flatten(1)


def cut_windows(fourier: FourierFrames, source: Tensor, meta: Tensor) -> Tensor:
    """The samples of each STFT frame, [B, frames, n_fft]; zeros beyond a row's end."""
    lengths = meta[:, FRAMES] * SAMPLES_PER_MEL_FRAME
    windows = fourier.reflect(source, lengths).unfold(1, fourier.n_fft, fourier.hop)
    position = torch.arange(windows.shape[1], device=source.device) * fourier.hop
    is_real = (position <= lengths[:, None]) & (lengths[:, None] > 0)
    return torch.where(is_real[..., None], windows, 0.0)


def polar_spectrum(fourier: FourierFrames, x: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    """Log magnitude and phase [B, frames, n_fft + 2 or more] -> real and imaginary parts [B, frames, n_fft + 2], zero outside the mask."""
    bins = fourier.n_fft // 2 + 1
    value = x.float() + bias
    magnitude = torch.where(mask, value[..., :bins].exp().clamp(max=MAX_MAGNITUDE), 0.0)
    phase = value[..., bins : 2 * bins].sin()
    return torch.cat([magnitude * phase.cos(), magnitude * phase.sin()], dim=-1)


def join_windows(hift: HiFT, windows: Tensor, fades: Tensor, slot_withheld: Tensor, meta: Tensor) -> Tensor:
    """Samples of each STFT frame [B, frames, n_fft] -> audio [B, 480 T], faded in from the withheld audio. fades: [2, samples]."""
    fourier = hift.fourier
    rows, overlapping = windows.shape[0], fourier.n_fft // fourier.hop
    ahead = overlapping // 2  # hops by which a frame begins before its centre
    hops = windows.shape[1] - 1
    padded = F.pad(windows, (0, 0, overlapping - 1 - ahead, ahead - 1))
    padded = padded.view(rows, -1, overlapping, fourier.hop)
    signal = padded[:, overlapping - 1 : overlapping - 1 + hops, 0]
    for back in range(1, overlapping):
        begin = overlapping - 1 - back
        signal = signal + padded[:, begin : begin + hops, back]
    lengths = meta[:, FRAMES] * SAMPLES_PER_MEL_FRAME
    limit = hift.config.audio_limit
    audio = fourier.undo_windows(signal.reshape(rows, -1), lengths).clamp(-limit, limit)
    into = torch.arange(audio.shape[1], device=audio.device) - _column(meta, OVERLAP) * SAMPLES_PER_MEL_FRAME
    is_fading = (into >= 0) & (into < VOCODER_OVERLAP_SAMPLES) & (_column(meta, FADES) != 0)
    into = into.clamp(0, VOCODER_OVERLAP_SAMPLES - 1)
    old = slot_withheld[_column(meta, SLOT), into]
    return torch.where(is_fading, audio * fades[0][into] + old * fades[1][into], audio)


def keep(
    mel: Tensor, source: Tensor, audio: Tensor, phase: Tensor, slot_mel: Tensor, slot_phase: Tensor, out: Tensor, meta: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The results of a call. mel: [B, T, 80]; phase: [B, H, T].

    For the slots of its rows: mel [B, kept frames, 80], source [B, kept samples], withheld audio [B, samples], phase [B, H]. Then [B, T]:
    the row of ``out`` for each frame of audio, the last one for frames that are not due.
    """
    rows, frames = mel.shape[:2]
    row = torch.arange(rows, device=mel.device)[:, None]
    first = torch.arange(slot_mel.shape[1], device=mel.device) + _column(meta, NEXT_FIRST)
    withheld = torch.arange(VOCODER_OVERLAP_FRAMES, device=mel.device) + _column(meta, EMITTED)
    first, withheld = first.clamp(max=frames - 1), withheld.clamp(max=frames - 1)
    last = (_column(meta, EMITTED) - 1).clamp(min=0)[:, None].expand(-1, phase.shape[1], 1)  # [B, H, 1]
    moves = _column(meta, EMITTED) > _column(meta, OVERLAP)
    kept_phase = torch.where(moves, phase.gather(2, last)[..., 0], slot_phase[meta[:, SLOT]])
    frame = torch.arange(frames, device=mel.device)
    is_due = (frame >= _column(meta, OVERLAP)) & (frame < _column(meta, EMITTED))
    place = torch.where(is_due, _column(meta, OUT_FRAME) + frame - _column(meta, OVERLAP), out.shape[0] - 1)
    by_frame = (rows, frames, SAMPLES_PER_MEL_FRAME)
    kept_source, kept_audio = source.view(by_frame)[row, first], audio.view(by_frame)[row, withheld]
    return mel[row, first], kept_source.flatten(1), kept_audio.flatten(1), kept_phase, place


Function = Callable[..., Any]


class Functions:
    """The functions above, compiled by ``torch.compile`` with ``backend``; None: not compiled.

    static_dim: dimension of activations to specialise on: a division by a known number of channels is cheaper. None: no such dimension.
    """

    def __init__(self, backend: str | Callable[..., Any] | None, static_dim: int | None) -> None:
        self._backend, self._static_dim = backend, static_dim
        self.snake = self._prepare(snake, True)
        self.add_and_snake = self._prepare(add_and_snake, True)
        self.add_and_leak = self._prepare(add_and_leak, True)
        self.gather_mel = self._prepare(gather_mel)
        self.make_source = self._prepare(make_source)
        self.cut_windows = self._prepare(cut_windows)
        self.polar_spectrum = self._prepare(polar_spectrum)
        self.join_windows = self._prepare(join_windows)
        self.keep = self._prepare(keep)

    def _prepare(self, function: Function, is_static: bool = False) -> Function:
        if self._backend is None:
            return function
        compiled: Function = torch.compile(function, dynamic=True, fullgraph=True, backend=self._backend)
        dim = self._static_dim
        if not is_static or dim is None:
            return compiled

        def call(*arguments: Tensor | list[Tensor]) -> Any:
            for argument in arguments:
                for tensor in argument if isinstance(argument, list) else [argument]:
                    if tensor.ndim == 3:
                        torch._dynamo.mark_static(tensor, dim)
            return compiled(*arguments)

        return call
