"""Band-limited resampling, equal to ``torchaudio.transforms.Resample`` with its defaults. numpy only.

A waveform at one rate goes in, the same sound at another rate comes out. The voice front-ends use it (16 to 24 kHz), and
so do the clients (any file to 16 kHz).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

LOWPASS_ZERO_CROSSINGS = 6  # torchaudio's lowpass_filter_width
ROLLOFF = 0.99  # cut-off as a fraction of the lower Nyquist frequency


@lru_cache(maxsize=16)
def polyphase_kernel(source_rate: int, target_rate: int) -> tuple[NDArray[np.float32], NDArray[np.int64], int]:
    """Taps of every output phase, for coprime rates.

    Output n of a block of ``target_rate`` samples lies at input position c = n * source_rate / target_rate. Its weight for the
    input sample j is s * sinc(s (j - c)) * cos^2(pi s (j - c) / 12) with s = 0.99 min(source_rate, target_rate) / source_rate,
    zero where |s (j - c)| >= 6: a sinc under a Hann window of six zero crossings.

    Returns taps float32 [target_rate, 2 * half_width + 2], first input sample of each phase int64 [target_rate] (relative
    to the block's first input sample, shifted right by ``half_width``), and ``half_width``.
    """
    scale = ROLLOFF * min(source_rate, target_rate) / source_rate
    half_width = math.ceil(LOWPASS_ZERO_CROSSINGS / scale)
    phases = np.arange(target_rate, dtype=np.int64)
    first = phases * source_rate // target_rate
    distance = first[:, None] - half_width + np.arange(2 * half_width + 2)[None, :] - (phases * source_rate / target_rate)[:, None]
    crossings = np.clip(distance * scale, -LOWPASS_ZERO_CROSSINGS, LOWPASS_ZERO_CROSSINGS)
    window = np.cos(crossings * math.pi / (2 * LOWPASS_ZERO_CROSSINGS)) ** 2
    return (np.sinc(crossings) * window * scale).astype(np.float32), first, half_width


def resample(waveform: NDArray[np.float32], source_rate: int, target_rate: int) -> NDArray[np.float32]:
    """Resample the last axis.

    waveform: float32 [..., N] at ``source_rate`` Hz. Returns float32 [..., ceil(N * target_rate / source_rate)].
    Raises ``ValueError`` unless both rates are whole numbers above 0.

    Formula: torchaudio.functional.resample with lowpass_filter_width 6, rolloff 0.99, sinc_interp_hann.
    """
    for rate in (source_rate, target_rate):
        if rate != int(rate) or rate <= 0:
            raise ValueError(f"A sample rate is a whole number of Hz above 0, not {rate}.")
    divisor = math.gcd(int(source_rate), int(target_rate))
    stride, phases = int(source_rate) // divisor, int(target_rate) // divisor
    waveform = np.asarray(waveform, dtype=np.float32)
    length = waveform.shape[-1]
    if stride == phases or length == 0:
        return waveform.copy()
    taps, first, half_width = polyphase_kernel(stride, phases)
    blocks = math.ceil(length / stride)
    right = blocks * stride + half_width + 2 - length
    padded = np.pad(waveform, [(0, 0)] * (waveform.ndim - 1) + [(half_width, right)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, taps.shape[1], axis=-1)
    output = np.empty((*waveform.shape[:-1], blocks, phases), dtype=np.float32)
    for phase in range(phases):  # a phase is one strided matrix-vector product over all blocks
        output[..., phase] = windows[..., first[phase] :: stride, :][..., :blocks, :] @ taps[phase]
    target_length = math.ceil(length * phases / stride)
    return np.ascontiguousarray(output.reshape(*waveform.shape[:-1], blocks * phases)[..., :target_length])
