"""The three spectral front-ends, in numpy: mono waveforms in, feature frames out.

- ``log_mel_16k``: 128-bin Whisper log-mel, input of the speech tokenizer;
- ``fbank_16k``: 80-bin Kaldi filter bank, input of the speaker encoder;
- ``mel_24k``: 80-bin log-mel at 50 frames per second, conditioning input of the flow.

Called by ``speech_tokenizer``, ``speaker_encoder`` and ``build``. No torch: processes without a GPU do not load it for them;
``torch_features`` has the same for a GPU.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from bistream.audio.spectral import periodic_hann, slaney_mel_filters
from bistream.contract.audio import REFERENCE_SAMPLE_RATE
from bistream.errors import InvalidInputError
from bistream.gpu.steps import tiles
from bistream.types import FloatArray

WHISPER_FFT = 400
WHISPER_HOP = 160
WHISPER_MEL_BINS = 128
MEL_BINS = 80

KALDI_FRAME = 400  # 25 ms
KALDI_HOP = 160  # 10 ms
KALDI_FFT = 512
KALDI_MEL_BINS = 80
KALDI_LOW_HZ = 20.0
KALDI_PREEMPHASIS = 0.97

MEL_SAMPLE_RATE = 24_000
MEL_HOP = 480
MEL_FFT = 1920
MEL_HIGH_HZ = 8000.0  # unless the family has another one
# The Fourier transform holds the GIL, and the orchestrator's process has other sessions to serve: 30 s at once would stop them all.
MEL_BLOCK_FRAMES = 64


def log_mel_16k(waveform: FloatArray) -> FloatArray:
    """Whisper log-mel. waveform float32 [N], 16 kHz, N > 200 -> float32 [128, N // 160].

    Centred frames with reflection, the last one dropped; power; log10 with floor 1e-10; floor at maximum - 8; (x + 4) / 4.
    Raises ``InvalidInputError`` when the waveform is too short to be reflected.
    """
    check_long_enough(waveform.shape[-1], WHISPER_FFT // 2)
    padded = np.pad(waveform, WHISPER_FFT // 2, mode="reflect")
    power = _power_spectrum(padded, periodic_hann(WHISPER_FFT), WHISPER_HOP)[:-1]
    mel = power @ slaney_mel_filters(REFERENCE_SAMPLE_RATE, WHISPER_FFT, WHISPER_MEL_BINS, 0.0, REFERENCE_SAMPLE_RATE / 2).T
    log_mel = np.log10(np.maximum(mel, 1e-10))
    log_mel = np.maximum(log_mel, log_mel.max(initial=-np.inf) - 8.0)
    return np.ascontiguousarray(((log_mel + 4.0) / 4.0).T, dtype=np.float32)


def mel_24k(waveform: FloatArray, high_hz: float = MEL_HIGH_HZ) -> FloatArray:
    """Mel frames of the flow. waveform float32 [N], 24 kHz, N > 720 -> float32 [N // 480, 80].

    Reflection by 720 on both sides, frames not centred, magnitude sqrt(re^2 + im^2 + 1e-9), natural log with floor 1e-5.
    Raises ``InvalidInputError`` when the waveform is too short to be reflected.
    """
    margin = (MEL_FFT - MEL_HOP) // 2
    check_long_enough(waveform.shape[-1], margin)
    padded = np.pad(waveform, margin, mode="reflect")
    filters = slaney_mel_filters(MEL_SAMPLE_RATE, MEL_FFT, MEL_BINS, 0.0, high_hz).T
    frames = 1 + (padded.shape[0] - MEL_FFT) // MEL_HOP
    mel = np.empty((frames, MEL_BINS))
    for block in tiles(frames, MEL_BLOCK_FRAMES):
        samples = padded[block.start * MEL_HOP : (block.stop - 1) * MEL_HOP + MEL_FFT]
        mel[block] = np.sqrt(_power_spectrum(samples, periodic_hann(MEL_FFT), MEL_HOP) + 1e-9) @ filters
    return np.ascontiguousarray(np.log(np.maximum(mel, 1e-5)), dtype=np.float32)


def fbank_16k(waveform: FloatArray) -> FloatArray:
    """Kaldi filter bank. waveform float32 [N], 16 kHz in [-1, 1] (not scaled to int16) -> float32 [1 + (N - 400) // 160, 80].

    Per frame: mean removed, pre-emphasis 0.97 (the first sample stands in for its predecessor), Povey window, power, natural
    log with the float32 epsilon as floor. No dither. Fewer than 400 samples give no frame.
    """
    if waveform.shape[-1] < KALDI_FRAME:
        return np.zeros((0, KALDI_MEL_BINS), dtype=np.float32)
    frames = _frames(waveform, KALDI_FRAME, KALDI_HOP).astype(np.float64)
    frames -= frames.mean(axis=1, keepdims=True)
    previous = np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
    windowed = (frames - KALDI_PREEMPHASIS * previous) * povey_window()
    power = np.abs(np.fft.rfft(windowed, n=KALDI_FFT, axis=1)) ** 2
    energies = power @ kaldi_mel_filters().T
    features: FloatArray = np.log(np.maximum(energies, np.finfo(np.float32).eps)).astype(np.float32)
    return features


def check_long_enough(samples: int, margin: int) -> None:
    """Raises ``InvalidInputError`` for a recording that cannot be reflected by ``margin`` samples."""
    if samples <= margin:
        raise InvalidInputError(f"The reference recording holds {samples} samples; send a longer one.")


def _frames(waveform: FloatArray, size: int, hop: int) -> FloatArray:
    """View of [T, size] frames that lie entirely inside the waveform."""
    return np.lib.stride_tricks.sliding_window_view(waveform, size)[::hop]


def _power_spectrum(waveform: FloatArray, window: NDArray[np.float64], hop: int) -> NDArray[np.float64]:
    """re^2 + im^2 of windowed frames: [T, window // 2 + 1]."""
    spectrum = np.fft.rfft(_frames(waveform, window.shape[0], hop) * window, axis=1)
    return spectrum.real**2 + spectrum.imag**2


@cache
def povey_window() -> NDArray[np.float64]:
    """Kaldi's: a symmetric Hann window to the power of 0.85."""
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(KALDI_FRAME) / (KALDI_FRAME - 1))
    window: NDArray[np.float64] = hann**0.85
    return window


@cache
def kaldi_mel_filters() -> NDArray[np.float64]:
    """Triangles with straight sides on the mel scale 1127 ln(1 + f / 700), 20 Hz to 8 kHz. [80, 257]; the Nyquist bin has weight 0."""
    frequencies = np.arange(KALDI_FFT // 2) * REFERENCE_SAMPLE_RATE / KALDI_FFT
    mel = 1127 * np.log1p(frequencies / 700)
    low_mel, high_mel = 1127 * np.log1p(np.array([KALDI_LOW_HZ, REFERENCE_SAMPLE_RATE / 2]) / 700)
    edges = np.linspace(low_mel, high_mel, KALDI_MEL_BINS + 2)
    left, centre, right = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    triangles = np.maximum(0, np.minimum((mel - left) / (centre - left), (right - mel) / (right - centre)))
    filters = np.pad(triangles, [(0, 0), (0, 1)])
    filters.setflags(write=False)
    return filters
