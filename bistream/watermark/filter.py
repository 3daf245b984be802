"""The mark as a filter, so that it can be laid over a stream: no delay, and the same samples wherever the stream is cut.

The package's encoder reads the spectrum of a whole recording and adds a residual to its log magnitudes, which is a gain for each of
128 bins below 2 kHz. Over speech that gain hardly changes (0.2 dB around a mean of 1.8 dB up or down from bin to bin): it is a comb, and
that of a steady sound is as well found by the package's detector. So it is computed once, from the encoder, and turned into the
minimum-phase filter of these gains (by the cepstrum; Oppenheim and Schafer, Discrete-Time Signal Processing), which needs no sample of the
future: the mark lies behind the sound and under it, not before it.

A block of ``block_samples`` is one Fourier transform of itself and of what came before. Blocks are counted from the end of a session's
first waveform, since hops end on mel frames, or a few samples before them (CosyVoice3). Cuts of a stream at multiples of a block give the
same samples to the bit; at other places they give the same but for rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bistream.types import FloatArray
from bistream.watermark.library import BINS, DB_PER_UNIT, FFT_SIZE, SAMPLE_RATE, convolved, load_weights

REACH_S = FFT_SIZE / SAMPLE_RATE  # of the filter, 64 ms: as long as the window that the detector looks through
FULL_SCALE = 0.99  # bound of the samples, as of the vocoders
_STEADY = 0.7  # normalised magnitude, -43 dB: of voiced speech
_CONTEXT = 15  # frames to each side that the encoder sees
_FINER = 8  # bins of the cepstrum's transform for one of the filter, against aliasing


@dataclass(eq=False)
class MarkState:
    """Of one session. before: float32 [kept], the sound before the next block, as it was without the mark. is_new: nothing came yet."""

    before: FloatArray
    is_new: bool = True


class MarkFilter:
    """``open`` a state for a session, then ``push`` its sound. One thread at a time."""

    def __init__(self, taps: NDArray[np.float64], block_samples: int, device: torch.device) -> None:
        """taps: float64 [M], of the filter."""
        self._block = block_samples
        self._kept = -(-(len(taps) - 1) // block_samples) * block_samples
        self._size = self._kept + block_samples
        self._device = device
        spectrum = np.fft.rfft(taps, self._size).astype(np.complex64)
        self._response = torch.from_numpy(spectrum).to(device)

    @classmethod
    def load(cls, sample_rate: int, block_samples: int, device: torch.device) -> MarkFilter:
        """Raises ``ConfigError`` where the package is not installed. sample_rate: of the sound, in Hz."""
        found = cls(filter_taps(steady_gains_db(load_weights()), sample_rate), block_samples, device)
        found.push([found.open()], [np.zeros(block_samples, np.float32)])  # loads the library of the transform
        return found

    def open(self) -> MarkState:
        return MarkState(np.zeros(self._kept, np.float32))

    @torch.inference_mode()
    def push(self, states: Sequence[MarkState], waveforms: Sequence[FloatArray]) -> list[FloatArray]:
        """The next samples of sessions, float32 [N] each and N possibly 0 -> as many, with the mark."""
        if not any(map(len, waveforms)):
            return list(waveforms)
        padded = [self._on_grid(state, samples) for state, samples in zip(states, waveforms, strict=True)]
        marked = self._filtered(torch.from_numpy(np.concatenate(padded)).to(self._device)).cpu().numpy()
        found, start = [], 0
        for state, samples, sound in zip(states, waveforms, padded, strict=True):
            begin = len(sound) - self._kept - len(samples) if state.is_new else 0
            end = begin + len(samples)
            found.append(marked[start + begin : start + end].copy())
            state.before = sound[end : end + self._kept].copy()
            state.is_new &= not len(samples)
            start += len(sound)
        return found

    def _on_grid(self, state: MarkState, samples: FloatArray) -> FloatArray:
        """Whole blocks, behind what came before: the first waveform ends with one, a later one begins with one."""
        silence = np.zeros(-len(samples) % self._block, np.float32)
        return np.concatenate([state.before, silence, samples] if state.is_new else [state.before, samples, silence])

    def _filtered(self, sound: Tensor) -> Tensor:
        """float32 [kept + N] -> [N], N a multiple of the block."""
        windows = sound.unfold(0, self._size, self._block)
        marked: Tensor = torch.fft.irfft(torch.fft.rfft(windows) * self._response, n=self._size)
        return marked[:, self._kept :].reshape(-1).clamp(-FULL_SCALE, FULL_SCALE)


@torch.inference_mode()
def steady_gains_db(weights: Mapping[str, Tensor]) -> NDArray[np.float64]:
    """float64 [``BINS``]: what the encoder adds to a steady sound, in decibels. The bins are SAMPLE_RATE / FFT_SIZE Hz wide."""
    steady = torch.full((1, BINS, 2 * _CONTEXT + 1), _STEADY)
    residual = convolved(weights, "encoder.layers", steady)[0, :, _CONTEXT]
    return residual.numpy().astype(np.float64) * DB_PER_UNIT


def filter_taps(gains_db: NDArray[np.float64], sample_rate: int) -> NDArray[np.float64]:
    """The minimum-phase filter of the gains, float64 [``REACH_S`` of the sample rate]; from bin ``BINS`` on the gain is 1."""
    taps = round(REACH_S * sample_rate)
    size = _FINER * taps
    bins = np.arange(size // 2 + 1) / _FINER
    log_gain = np.interp(bins, np.arange(BINS + 1), np.append(gains_db, 0.0)) * (np.log(10.0) / 20.0)
    cepstrum = np.fft.irfft(log_gain, size)
    cepstrum[1 : size // 2] *= 2.0
    cepstrum[size // 2 + 1 :] = 0.0
    impulse: NDArray[np.float64] = np.fft.irfft(np.exp(np.fft.rfft(cepstrum)), size)
    return impulse[:taps]
