"""Decodes audio files of any common format within bounds, with PyAV: what a file claims about itself is not believed.

``interfaces`` decodes uploads with it, and the clients what soundfile does not read (M4A, AAC, WebM), where ``av`` is installed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO

import av
import numpy as np
from av.audio.resampler import AudioResampler
from numpy.typing import NDArray

from bistream.contract.audio import REFERENCE_SAMPLE_RATE

MAX_CHANNELS = 8
MAX_SOURCE_RATE = 192_000
MAX_PACKETS = 100_000  # far more than a minute of any format has
# Formats of single files with their data inside: no playlists, and nothing that names other files or addresses.
DEMUXERS = "wav,w64,aiff,mp3,flac,ogg,aac,matroska,webm,mov,mp4,m4a,3gp,3g2,mj2"


class UnreadableError(ValueError):
    """These bytes are no audio that can be decoded."""


class UnusualError(ValueError):
    """Too many channels, or a sample rate that no recording has."""


class TooLongError(ValueError):
    """There is more than was asked for."""


@dataclass(frozen=True)
class Decoded:
    """samples: float32 [N], 16 kHz mono, finite. source_rate: of the file, in Hz."""

    samples: NDArray[np.float32]
    source_rate: int


def decode(file: BinaryIO, max_s: float) -> Decoded:
    """Stops beyond ``max_s`` seconds. Raises ``UnreadableError``, ``UnusualError`` and ``TooLongError``. Takes its time: call it in a
    thread."""
    try:
        decoded = _decode(file, max_s)
    except (UnusualError, TooLongError):
        raise
    except (av.error.FFmpegError, ValueError, OSError, EOFError, MemoryError):
        raise UnreadableError from None
    if not np.isfinite(decoded.samples).all():
        raise UnreadableError
    return decoded


def _decode(file: BinaryIO, max_s: float) -> Decoded:
    parts: list[NDArray[np.float32]] = []
    total = rate = 0
    with av.open(file, "r", options={"format_whitelist": DEMUXERS, "protocol_whitelist": ""}) as container:
        if not container.streams.audio:
            raise UnreadableError
        resampler = AudioResampler(format="flt", layout="mono", rate=REFERENCE_SAMPLE_RATE)
        for count, packet in enumerate(container.demux(container.streams.audio[0])):
            if count > MAX_PACKETS:
                raise UnreadableError
            for frame in packet.decode():
                rate = frame.sample_rate
                if frame.layout.nb_channels > MAX_CHANNELS or not 0 < rate <= MAX_SOURCE_RATE:
                    raise UnusualError
                for made in resampler.resample(frame):
                    parts.append(_samples(made))
                    total += made.samples
                if total > max_s * REFERENCE_SAMPLE_RATE:
                    raise TooLongError
        parts += [_samples(made) for made in resampler.resample(None)] if total else []
    return Decoded(np.concatenate(parts) if parts else np.zeros(0, np.float32), rate)


def _samples(frame: av.AudioFrame) -> NDArray[np.float32]:
    return np.asarray(frame.to_ndarray(), np.float32).reshape(-1)
