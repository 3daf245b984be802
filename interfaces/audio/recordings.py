"""Recordings that clients upload, decoded within bounds: what a file claims about itself is not believed."""

from __future__ import annotations

import io

import av
import numpy as np
from av.audio.resampler import AudioResampler
from numpy.typing import NDArray

from bistream.errors import InvalidInputError
from bistream.rates import REFERENCE_SAMPLE_RATE

MAX_CHANNELS = 8
MAX_SOURCE_RATE = 192_000
MAX_PACKETS = 100_000  # far more than a minute of any format has
# Formats of single files with their data inside: no playlists, and nothing that names other files or addresses.
DEMUXERS = "wav,w64,aiff,mp3,flac,ogg,aac,matroska,webm,mov,mp4,m4a,3gp,3g2,mj2"
_FAILED = "The recording cannot be decoded as audio; upload a WAV, FLAC, MP3, Ogg, WebM or M4A file."


def decode_recording(data: bytes, min_s: float, max_s: float) -> NDArray[np.float32]:
    """float32 [N], 16 kHz mono. Stops decoding beyond ``max_s``. Raises ``InvalidInputError``. Takes its time: call it in a thread."""
    try:
        samples = _decoded(data, max_s)
    except (av.error.FFmpegError, ValueError, OSError, EOFError, MemoryError):
        raise InvalidInputError(_FAILED) from None
    if len(samples) < min_s * REFERENCE_SAMPLE_RATE:
        raise InvalidInputError(f"The recording lasts {len(samples) / REFERENCE_SAMPLE_RATE:.1f} s; upload at least {min_s:g} s.")
    return samples


def _samples(frame: av.AudioFrame) -> NDArray[np.float32]:
    return np.asarray(frame.to_ndarray(), np.float32).reshape(-1)


def _decoded(data: bytes, max_s: float) -> NDArray[np.float32]:
    parts: list[NDArray[np.float32]] = []
    total = 0
    with av.open(io.BytesIO(data), "r", options={"format_whitelist": DEMUXERS, "protocol_whitelist": ""}) as container:
        if not container.streams.audio:
            raise ValueError
        resampler = AudioResampler(format="flt", layout="mono", rate=REFERENCE_SAMPLE_RATE)
        for count, packet in enumerate(container.demux(container.streams.audio[0])):
            if count > MAX_PACKETS:
                raise ValueError
            for frame in packet.decode():
                if frame.layout.nb_channels > MAX_CHANNELS or not 0 < frame.sample_rate <= MAX_SOURCE_RATE:
                    raise InvalidInputError(f"The recording has more than {MAX_CHANNELS} channels or an unusual sample rate; convert it.")
                for made in resampler.resample(frame):
                    parts.append(_samples(made))
                    total += made.samples
                if total > max_s * REFERENCE_SAMPLE_RATE:
                    raise InvalidInputError(f"The recording is longer than {max_s:g} s; upload a shorter one.")
        parts += [_samples(made) for made in resampler.resample(None)] if total else []
    samples = np.concatenate(parts) if parts else np.zeros(0, np.float32)
    if not np.isfinite(samples).all():
        raise ValueError
    return np.clip(samples, -1.0, 1.0).astype(np.float32)
