"""The spectral front-ends of ``bistream.voice.features`` in PyTorch, for batches on a GPU; a test compares both. Also pitch.

All take float32 [B, N]; rows have equal length.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bistream.audio.resample import LOWPASS_ZERO_CROSSINGS, ROLLOFF
from bistream.audio.spectral import slaney_mel_filters
from bistream.contract.audio import REFERENCE_SAMPLE_RATE
from bistream.families.cosyvoice2 import AUDIO_FORMAT
from bistream.voice.features import (
    KALDI_FFT,
    KALDI_FRAME,
    KALDI_HOP,
    KALDI_PREEMPHASIS,
    MEL_BINS,
    MEL_FFT,
    MEL_HIGH_HZ,
    WHISPER_FFT,
    WHISPER_HOP,
    WHISPER_MEL_BINS,
    kaldi_mel_filters,
)

_PITCH_RATE = 8000
_PITCH_WINDOW = 512  # 64 ms
_PITCH_LOW_HZ, _PITCH_HIGH_HZ = 60.0, 400.0
_VOICED = 0.35  # of YIN's normalised difference; a frame above it is unvoiced
_SILENT = 1e-3  # root mean square below which a frame is unvoiced


@cache
def _filters(kind: str, device: torch.device) -> Tensor:
    if kind == "kaldi":
        table = kaldi_mel_filters()
    elif kind == "whisper":
        table = slaney_mel_filters(REFERENCE_SAMPLE_RATE, WHISPER_FFT, WHISPER_MEL_BINS, 0.0, REFERENCE_SAMPLE_RATE / 2)
    else:
        table = slaney_mel_filters(AUDIO_FORMAT.sample_rate, MEL_FFT, MEL_BINS, 0.0, MEL_HIGH_HZ)
    return torch.from_numpy(table.astype(np.float32)).to(device)


@cache
def _hann(size: int, device: torch.device) -> Tensor:
    return torch.hann_window(size, device=device)


def resample(waveform: Tensor, source_rate: int, target_rate: int) -> Tensor:
    """``bistream.audio.resample`` of [B, N] as one strided convolution: [B, ceil(N target / source)]."""
    divisor = math.gcd(source_rate, target_rate)
    stride, phases = source_rate // divisor, target_rate // divisor
    scale = ROLLOFF * min(stride, phases) / stride
    half = math.ceil(LOWPASS_ZERO_CROSSINGS / scale)
    offset = torch.arange(-half, half + stride + 1, dtype=torch.float64)
    distance = offset[None] - torch.arange(phases, dtype=torch.float64)[:, None] * stride / phases
    crossings = (distance * scale).clamp(-LOWPASS_ZERO_CROSSINGS, LOWPASS_ZERO_CROSSINGS)
    taps = torch.sinc(crossings) * torch.cos(crossings * math.pi / (2 * LOWPASS_ZERO_CROSSINGS)) ** 2 * scale
    length = math.ceil(waveform.shape[1] * phases / stride)
    padded = F.pad(waveform, (half, half + 2 * stride))[:, None]
    out = F.conv1d(padded, taps[:, None].to(waveform), stride=stride)
    return out.transpose(1, 2).flatten(1)[:, :length]


def log_mel_16k(waveform: Tensor) -> Tensor:
    """The speech tokenizer's input, [B, 128, N // 160]; the floor is each row's own."""
    spectrum = torch.stft(waveform, WHISPER_FFT, WHISPER_HOP, window=_hann(WHISPER_FFT, waveform.device), return_complex=True)
    mel = _filters("whisper", waveform.device) @ spectrum[..., :-1].abs().square()
    log_mel = mel.clamp(min=1e-10).log10()
    floored: Tensor = (torch.maximum(log_mel, log_mel.amax((1, 2), keepdim=True) - 8.0) + 4.0) / 4.0
    return floored


def mel_24k(waveform: Tensor) -> Tensor:
    """The flow's and vocoder's mel, [B, N // 480, 80]; differentiable."""
    padded = F.pad(waveform[:, None], [(MEL_FFT - AUDIO_FORMAT.samples_per_mel_frame) // 2] * 2, mode="reflect")[:, 0]
    window = _hann(MEL_FFT, waveform.device)
    spectrum = torch.stft(padded, MEL_FFT, AUDIO_FORMAT.samples_per_mel_frame, window=window, center=False, return_complex=True)
    magnitude = (spectrum.real.square() + spectrum.imag.square() + 1e-9).sqrt()
    return (_filters("mel", waveform.device) @ magnitude).clamp(min=1e-5).log().transpose(1, 2)


def fbank_16k(waveform: Tensor) -> Tensor:
    """Kaldi's filter bank less its mean over time, as the speaker encoder gets it: [B, 1 + (N - 400) // 160, 80]."""
    frames = waveform.unfold(1, KALDI_FRAME, KALDI_HOP)
    frames = frames - frames.mean(-1, keepdim=True)
    previous = torch.cat([frames[..., :1], frames[..., :-1]], dim=-1)
    window = torch.hann_window(KALDI_FRAME, periodic=False, device=waveform.device) ** 0.85
    power = torch.fft.rfft((frames - KALDI_PREEMPHASIS * previous) * window, n=KALDI_FFT).abs().square()
    energies = power @ _filters("kaldi", waveform.device).T
    features = energies.clamp(min=float(np.finfo(np.float32).eps)).log()
    centred: Tensor = features - features.mean(1, keepdim=True)
    return centred


def pitch(waveform: Tensor) -> Tensor:
    """f0 in Hz of every mel frame, 0 where unvoiced: [B, N] at 24 kHz -> [B, N // 480].

    YIN (de Cheveigné and Kawahara 2002): cumulative mean normalised difference of windows of 64 ms, its first dip below the threshold,
    else its minimum; then a median over five frames.
    """
    frames = waveform.shape[1] // AUDIO_FORMAT.samples_per_mel_frame
    hop = AUDIO_FORMAT.samples_per_mel_frame * _PITCH_RATE // AUDIO_FORMAT.sample_rate
    signal = resample(waveform, AUDIO_FORMAT.sample_rate, _PITCH_RATE)
    longest = math.ceil(_PITCH_RATE / _PITCH_LOW_HZ)
    shortest = int(_PITCH_RATE / _PITCH_HIGH_HZ)
    size = _PITCH_WINDOW + longest
    padded = F.pad(signal, ((size - hop) // 2, size))
    windows = padded.unfold(1, size, hop)[:, :frames]  # [B, T, size]
    difference = _difference(windows, longest)
    lags = torch.arange(1, longest + 1, device=waveform.device)
    normalised = difference * lags / difference.cumsum(-1).clamp(min=1e-9)
    normalised = normalised[..., shortest - 1 :]
    best = _first_dip(normalised)
    value = normalised.gather(-1, best)[..., 0]
    f0 = _PITCH_RATE / _refined(normalised, best, shortest)
    loud = windows.square().mean(-1).sqrt() > _SILENT
    f0 = torch.where((value < _VOICED) & loud, f0, 0.0)
    smooth: Tensor = F.pad(f0, (2, 2)).unfold(1, 5, 1).median(-1).values
    return smooth


def _difference(windows: Tensor, longest: int) -> Tensor:
    """Sum over the window of (x[j] - x[j + lag])^2 for lags 1 to ``longest``: [B, T, longest]."""
    head = windows[..., :_PITCH_WINDOW]
    size = 2 ** math.ceil(math.log2(windows.shape[-1] + _PITCH_WINDOW))
    products = torch.fft.irfft(torch.fft.rfft(windows, n=size) * torch.fft.rfft(head, n=size).conj(), n=size)[..., 1 : longest + 1]
    energy = F.pad(windows.square().cumsum(-1), (1, 0))
    shifted = energy[..., _PITCH_WINDOW + 1 : _PITCH_WINDOW + longest + 1] - energy[..., 1 : longest + 1]
    difference: Tensor = energy[..., _PITCH_WINDOW : _PITCH_WINDOW + 1] + shifted - 2 * products
    return difference.clamp(min=0)


def _first_dip(normalised: Tensor) -> Tensor:
    """The first local minimum close to the deepest one, int64 [B, T, 1]."""
    deepest = normalised.amin(-1, keepdim=True)
    padded = F.pad(normalised, (1, 1), value=1e9)
    is_dip = (normalised <= padded[..., :-2]) & (normalised <= padded[..., 2:]) & (normalised <= deepest + 0.1)
    return is_dip.float().argmax(-1, keepdim=True)


def _refined(normalised: Tensor, best: Tensor, shortest: int) -> Tensor:
    """The lag at the vertex of a parabola through the dip and its neighbours."""
    middle = best.clamp(1, normalised.shape[-1] - 2)
    left, centre, right = (normalised.gather(-1, middle + step) for step in (-1, 0, 1))
    shift = (0.5 * (left - right) / (left - 2 * centre + right).clamp(min=1e-6)).clamp(-0.5, 0.5)
    lag: Tensor = (middle + shift)[..., 0] + shortest
    return lag
