"""``features`` in PyTorch, for a GPU: the same three spectral front-ends, queued on a device. Loads torch.

In float64, as there: what is left of rounding is the same float32 but for the last digit (tests/unit/voice/test_torch_features.py). One
recording at a time: a call queues a dozen small operations, which costs the host a tenth of a millisecond. Frames are filled up to a few
counts: a Fourier transform of a new shape takes milliseconds to plan on a GPU, and tenths of a second on a CPU.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from bistream.audio.resample import polyphase_kernel
from bistream.audio.spectral import periodic_hann, slaney_mel_filters
from bistream.contract.audio import REFERENCE_SAMPLE_RATE
from bistream.types import FloatArray
from bistream.voice import features
from bistream.voice.features import (
    KALDI_FFT,
    KALDI_FRAME,
    KALDI_HOP,
    KALDI_MEL_BINS,
    KALDI_PREEMPHASIS,
    MEL_BINS,
    MEL_FFT,
    MEL_HOP,
    MEL_SAMPLE_RATE,
    WHISPER_FFT,
    WHISPER_HOP,
    WHISPER_MEL_BINS,
    kaldi_mel_filters,
    povey_window,
)
from bistream.voice.fixed_sizes import frames_for

_HALF_WHISPER = REFERENCE_SAMPLE_RATE / 2


class TorchFeatures:
    """Takes waveforms float32 [N] at 16 kHz, of the host or the device; returns tensors of the device. Thread-safe."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._whisper_window = self._constant(periodic_hann(WHISPER_FFT))
        self._whisper_filters = self._constant(
            slaney_mel_filters(REFERENCE_SAMPLE_RATE, WHISPER_FFT, WHISPER_MEL_BINS, 0.0, _HALF_WHISPER).T
        )
        self._kaldi_window = self._constant(povey_window())
        self._kaldi_filters = self._constant(kaldi_mel_filters().T)
        self._mel_window = self._constant(periodic_hann(MEL_FFT))
        self._mel_filters: dict[float, Tensor] = {}
        self._taps, self._stride, self._half_width = self._resampling()

    def load(self, waveform: FloatArray) -> Tensor:
        """To the device, as a copy."""
        return torch.tensor(waveform, dtype=torch.float32, device=self._device)

    def log_mel_16k(self, waveform: Tensor) -> Tensor:
        """As ``features.log_mel_16k``: float32 [128, N // 160]."""
        features.check_long_enough(waveform.shape[0], WHISPER_FFT // 2)
        frames, count = _frames(_reflected(waveform, WHISPER_FFT // 2), WHISPER_FFT, WHISPER_HOP)
        log_mel = (_power(frames * self._whisper_window) @ self._whisper_filters)[: count - 1].clamp_(min=1e-10).log10_()
        floor = log_mel.max() - 8.0 if len(log_mel) else log_mel
        return ((torch.maximum(log_mel, floor) + 4.0) / 4.0).T.float().contiguous()

    def fbank_16k(self, waveform: Tensor) -> Tensor:
        """As ``features.fbank_16k``: float32 [1 + (N - 400) // 160, 80]."""
        if waveform.shape[0] < KALDI_FRAME:
            return torch.zeros(0, KALDI_MEL_BINS, device=self._device)
        frames, count = _frames(waveform.double(), KALDI_FRAME, KALDI_HOP)
        frames = frames - frames.mean(dim=1, keepdim=True)
        previous = torch.cat([frames[:, :1], frames[:, :-1]], dim=1)
        energies = _power((frames - KALDI_PREEMPHASIS * previous) * self._kaldi_window, KALDI_FFT) @ self._kaldi_filters
        return energies[:count].clamp_(min=float(np.finfo(np.float32).eps)).log_().float()

    def prompt_mel(self, waveform: Tensor, high_hz: float) -> Tensor:
        """As ``build.prompt_mel``, of 16 kHz: float32 [T, 80]."""
        resampled = self._resample(waveform)
        margin = (MEL_FFT - MEL_HOP) // 2
        features.check_long_enough(resampled.shape[0], margin)
        frames, count = _frames(_reflected(resampled, margin), MEL_FFT, MEL_HOP)
        magnitude = (_power(frames * self._mel_window) + 1e-9).sqrt_()
        return (magnitude @ self._filters(high_hz))[:count].clamp_(min=1e-5).log_().float()

    def _filters(self, high_hz: float) -> Tensor:
        if high_hz not in self._mel_filters:
            self._mel_filters[high_hz] = self._constant(slaney_mel_filters(MEL_SAMPLE_RATE, MEL_FFT, MEL_BINS, 0.0, high_hz).T)
        return self._mel_filters[high_hz]

    def _resampling(self) -> tuple[Tensor, int, int]:
        """One matrix makes all phases of a block: [taps, phases]; the input samples of a block; those before it that it reads."""
        stride, phases = REFERENCE_SAMPLE_RATE, MEL_SAMPLE_RATE
        divisor = int(np.gcd(stride, phases))
        stride, phases = stride // divisor, phases // divisor
        taps, first, half_width = polyphase_kernel(stride, phases)
        matrix = np.zeros((taps.shape[1] + int(first.max()), phases))
        for phase in range(phases):
            matrix[first[phase] : first[phase] + taps.shape[1], phase] = taps[phase]
        return self._constant(matrix), stride, half_width

    def _resample(self, waveform: Tensor) -> Tensor:
        """16 to 24 kHz: float32 [ceil(N * 3 / 2)]."""
        length, (width, phases) = waveform.shape[0], self._taps.shape
        blocks = -(-length // self._stride)
        right = (blocks - 1) * self._stride + width - self._half_width - length
        padded = functional.pad(waveform.double(), (self._half_width, max(0, right)))
        output = padded.unfold(0, width, self._stride)[:blocks] @ self._taps
        return output.flatten()[: -(-length * phases // self._stride)].float()

    def _constant(self, array: NDArray[np.float64]) -> Tensor:
        return torch.tensor(array, dtype=torch.float64, device=self._device)


def _reflected(waveform: Tensor, margin: int) -> Tensor:
    return functional.pad(waveform.double()[None], (margin, margin), mode="reflect")[0]


def _frames(waveform: Tensor, size: int, hop: int) -> tuple[Tensor, int]:
    """[T, size], and how many of them lie inside the waveform; behind them come frames of zeros."""
    count = 1 + (waveform.shape[0] - size) // hop
    most = frames_for(count)
    missing = (most - 1) * hop + size - waveform.shape[0]
    padded = functional.pad(waveform, (0, missing)) if missing > 0 else waveform
    return padded.unfold(0, size, hop)[:most], count


def _power(frames: Tensor, size: int | None = None) -> Tensor:
    """re^2 + im^2 of a Fourier transform of ``size``, by default a frame's: [T, size // 2 + 1]."""
    return torch.view_as_real(torch.fft.rfft(frames, n=size)).square().sum(-1)
