"""Audio into the client's format while it is made: nothing is held back longer than the codec must (docs/interfaces.md has the delays)."""

from __future__ import annotations

import contextlib
from fractions import Fraction
from typing import Any

import av
import numpy as np
from av.audio.resampler import AudioResampler
from numpy.typing import NDArray

from bistream.contract.audio import UPSTREAM_SAMPLE_RATE
from interfaces.audio.formats import RAW, WAV, OutputFormat

INT16_MAX = 32767
# Container, codec, options of the container and of the codec. Ogg pages would hold 1 s, flac frames 120 ms by default; sizes that are only
# known at the end (Xing header) have no place in a stream, and tags (LIST, ID3) only where there is a comment: clients expect 44 bytes.
_CONTAINERS: dict[str, tuple[str, str, dict[str, str], dict[str, str]]] = {
    **{name: ("wav", inside, {"fflags": "bitexact"}, {}) for inside, name in WAV.items()},
    "mp3": ("mp3", "libmp3lame", {"write_xing": "0", "id3v2_version": "0"}, {"reservoir": "0"}),
    "opus": ("ogg", "libopus", {"page_duration": "20000"}, {}),
    "aac": ("adts", "aac", {}, {}),
    "flac": ("flac", "flac", {}, {"frame_size": "480"}),
}
_DEFAULT_BIT_RATE = {"mp3": 64_000, "opus": 48_000, "aac": 64_000}


class _Sink:
    """What a muxer writes. Not seekable: nothing is corrected afterwards."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        data = b"".join(self._parts)
        self._parts.clear()
        return data


class Encoder:
    """``feed`` for every piece of audio, ``finish`` once, ``close`` whatever came before.

    Samples are float32 [N], mono, in [-1, 1]; 16 bits of them are kept.
    """

    def __init__(self, target: OutputFormat, gain: float = 1.0, sample_rate: int = UPSTREAM_SAMPLE_RATE, comment: str = "") -> None:
        """sample_rate: of the samples. gain: factor of the samples; samples beyond full scale are clipped. comment: in the header of a
        container that has a place for it, all but AAC's; empty: none."""
        self.format = target
        self.sample_rate = sample_rate
        self._gain = np.float32(gain)
        self._sink = _Sink()
        self._container: Any = None
        self._codec: Any = None
        self._samples = 0  # fed so far
        self._encoded = 0  # at the target's rate
        self._resampler: Any = None
        if target.codec in RAW:
            if target.codec != "pcm_s16le":
                self._codec = av.CodecContext.create(target.codec, "w")
                self._describe(self._codec)
        else:
            self._open(target, comment)
        if target.sample_rate != sample_rate or (self._codec is not None and self._frame_format() != "s16"):
            self._resampler = AudioResampler(format=self._frame_format(), layout="mono", rate=target.sample_rate)
        self._is_plain = target.codec == "pcm_s16le" and self._resampler is None  # without FFmpeg's frames: most callers want this one

    def feed(self, samples: NDArray[np.float32]) -> bytes:
        """The bytes that are ready; may be none yet."""
        samples = samples if self._gain == 1.0 else samples * self._gain
        if not len(samples):
            return b""
        if self._is_plain:
            self._samples += len(samples)
            return _pcm(samples).tobytes()
        frame = av.AudioFrame.from_ndarray(_pcm(samples).reshape(1, -1), format="s16", layout="mono")
        frame.sample_rate = self.sample_rate
        frame.pts, frame.time_base = self._samples, Fraction(1, self.sample_rate)
        self._samples += len(samples)
        return self._encode([frame] if self._resampler is None else self._resampler.resample(frame))

    def finish(self) -> bytes:
        """The rest."""
        if not self._samples and self._container is None:
            return b""
        data = self._encode(self._resampler.resample(None) if self._resampler is not None and self._samples else [])
        if self._container is not None:
            self._container.mux(self._codec.encode(None))
            self._container.close()
        return data + self._sink.take()

    def close(self) -> None:
        """Frees what the codec holds, up to 7 MB, now: container and stream refer to each other. Idempotent."""
        container, self._container = self._container, None
        self._codec = self._resampler = None
        if container is not None:
            with contextlib.suppress(Exception):  # of one that was cut off: there is nothing more to write
                container.close()

    def _encode(self, frames: list[Any]) -> bytes:
        for frame in frames:
            frame.pts, frame.time_base = self._encoded, Fraction(1, self.format.sample_rate)
            self._encoded += frame.samples
            if self._container is not None:
                self._container.mux(self._codec.encode(frame))
            elif self._codec is not None:
                for packet in self._codec.encode(frame):
                    self._sink.write(bytes(packet))
            else:
                self._sink.write(frame.to_ndarray().tobytes())
        return self._sink.take()

    def _open(self, target: OutputFormat, comment: str) -> None:
        container, codec, container_options, codec_options = _CONTAINERS[target.codec]
        if comment and target.codec == "mp3":
            container_options = container_options | {"id3v2_version": "3"}
        # Only the sink's ``write`` is used, so the container cannot seek.
        self._container = av.open(self._sink, "w", format=container, options=container_options)
        if comment:
            self._container.metadata["comment"] = comment
        self._codec = self._container.add_stream(codec, rate=target.sample_rate, options=codec_options)
        self._codec.layout = "mono"
        bit_rate = target.bit_rate or _DEFAULT_BIT_RATE.get(target.codec)
        if bit_rate is not None:
            self._codec.bit_rate = bit_rate

    def _describe(self, codec: Any) -> None:
        codec.sample_rate = self.format.sample_rate
        codec.layout = "mono"
        codec.format = "flt" if self.format.codec == "pcm_f32le" else "s16"
        codec.time_base = Fraction(1, self.format.sample_rate)

    def _frame_format(self) -> str:
        return "s16" if self._codec is None else str(self._codec.format.name)


def _pcm(samples: NDArray[np.float32]) -> NDArray[np.int16]:
    return np.asarray(np.rint(np.clip(samples, -1.0, 1.0) * INT16_MAX), np.int16)
