"""Audio of the clients: reads a reference recording, writes a file or stream that grows while audio arrives."""

from __future__ import annotations

import os
import struct
import sys
import wave
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np
import soundfile
from numpy.typing import NDArray

from bistream.audio.resample import resample
from bistream.contract.audio import REFERENCE_SAMPLE_RATE, SYNTHETIC, UPSTREAM_SAMPLE_RATE

INT16_MAX = 32767
FORMATS = ("wav", "pcm")
STANDARD_OUTPUT = "-"
LONGEST_S = 120.0  # of a recording of a voice that is read; how much of it the server takes is the server's to say
CANCELLED, FAINTEST = 100.0, 1e-4  # channels that are so much louder than their mean, which counts as at least the second


@dataclass(frozen=True)
class Recording:
    """samples: float32 [N], 16 kHz mono in [-1, 1]. source_rate: of the file, in Hz."""

    samples: NDArray[np.float32]
    source_rate: int


def read_reference(path: str | Path) -> NDArray[np.float32]:
    """The samples of ``read_recording``."""
    return read_recording(path).samples


def read_recording(path: str | Path, longest_s: float = LONGEST_S) -> Recording:
    """Of any file that soundfile reads or, where PyAV is installed, FFmpeg. Channels are averaged. Raises ``ValueError`` with a sentence
    for the user, also for a file that lasts longer than ``longest_s``."""
    if not Path(path).exists() or Path(path).is_dir():  # a pipe is neither
        raise ValueError(f"{path} is {'a folder' if Path(path).is_dir() else 'not there'}; name the file of the recording.")
    recording = _read_with_soundfile(path, longest_s) or _read_with_av(path, longest_s)
    samples = recording.samples
    if len(samples) == 0:
        raise ValueError(f"{path} contains no audio; give a recording of 0.5 to 30 seconds.")
    if not np.isfinite(samples).all():
        raise ValueError(f"{path} contains samples that are no numbers; export the recording again.")
    return Recording(within_full_scale(samples), recording.source_rate)


def within_full_scale(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scaled down where samples lie outside [-1, 1], as files of floating-point numbers may have them: clipping would distort them."""
    peak = float(np.abs(samples).max(initial=0.0))
    return samples / np.float32(peak) if peak > 1.0 else samples


def _read_with_soundfile(path: str | Path, longest_s: float) -> Recording | None:
    """None: it does not know the format."""
    try:
        with soundfile.SoundFile(path) as file:
            if file.frames > longest_s * file.samplerate:
                raise _too_long(path, longest_s)
            samples, rate = file.read(dtype="float32", always_2d=True), file.samplerate  # [N, channels]
    except soundfile.LibsndfileError:
        return None
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}); name a file that is yours to read.") from None
    mono: NDArray[np.float32] = samples.mean(axis=1, dtype=np.float32)
    if np.abs(samples).max(initial=0.0) > CANCELLED * max(np.abs(mono).max(initial=0.0), FAINTEST):
        raise ValueError(
            f"The channels of {path} cancel each other out; give one of them alone: ffmpeg -i {path} -af pan=mono|c0=c0 one.wav"
        )
    return Recording(mono if rate == REFERENCE_SAMPLE_RATE else resample(mono, rate, REFERENCE_SAMPLE_RATE), rate)


def _read_with_av(path: str | Path, longest_s: float) -> Recording:
    try:
        from bistream.client import decoding  # noqa: PLC0415  (PyAV is no requirement of the clients)
    except ModuleNotFoundError:
        raise ValueError(
            f"{path} is no WAV, FLAC, Ogg or MP3 file; for M4A, AAC and WebM install the package av (pip install av), "
            f"or convert it: ffmpeg -i {path} recording.wav"
        ) from None
    try:
        with open(path, "rb") as file:
            decoded = decoding.decode(file, longest_s)
    except decoding.TooLongError:
        raise _too_long(path, longest_s) from None
    except (decoding.UnreadableError, decoding.UnusualError, OSError):
        raise ValueError(f"{path} could not be read as audio; give a WAV, FLAC, MP3, Ogg, WebM or M4A file.") from None
    return Recording(decoded.samples, decoded.source_rate)


def _too_long(path: str | Path, longest_s: float) -> ValueError:
    return ValueError(f"{path} lasts more than {longest_s:g} seconds; give a recording of 0.5 to 30 seconds.")


class AudioWriter(ABC):
    """Takes mono audio as it arrives; a file is made with the first sample, so that a refused request changes nothing.

    sample_rate: of the audio, known by the first sample.
    """

    sample_rate: int = UPSTREAM_SAMPLE_RATE

    @abstractmethod
    def write(self, waveform: NDArray[np.float32]) -> None:
        """float32 [N] in [-1, 1]. Raises ``OSError``."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class WavWriter(AudioWriter):
    """A WAV file of 16 bit. After every ``write`` it is complete and playable, whatever happens next. Its comment, at the end, says that
    the speech is synthetic."""

    def __init__(self, path: str | Path) -> None:
        """Raises ``OSError`` where the file could not be written."""
        self._path = _writable(path)
        self._wave: wave.Wave_write | None = None
        self._file: BinaryIO | None = None

    def write(self, waveform: NDArray[np.float32]) -> None:
        if self._wave is None or self._file is None:
            if not len(waveform):
                return
            self._file = open(self._path, "wb")
            self._wave = wave.open(self._file, "wb")
            self._wave.setparams((1, 2, self.sample_rate, 0, "NONE", ""))
        self._wave.writeframes(pcm16(waveform))  # corrects the sizes in the header
        self._file.flush()

    def close(self) -> None:
        if self._wave is not None and self._file is not None:
            self._wave.close()
            end = self._file.seek(0, os.SEEK_END) + self._file.write(_COMMENT)
            self._file.seek(4)
            self._file.write((end - 8).to_bytes(4, "little"))  # everything behind the size itself
            self._file.close()


class StreamWriter(AudioWriter):
    """Samples of 16 bit in a stream that cannot be rewound: raw, or after the header of a WAV of unknown length."""

    def __init__(self, stream: BinaryIO, has_header: bool) -> None:
        self._stream = stream
        self._needs_header = has_header

    def write(self, waveform: NDArray[np.float32]) -> None:
        if len(waveform):
            header = _header_of_unknown_length(self.sample_rate) if self._needs_header else b""
            self._needs_header = False
            self._stream.write(header + pcm16(waveform))
            self._stream.flush()

    def close(self) -> None:
        """The stream is its owner's."""


class RawWriter(AudioWriter):
    """A file of raw samples of 16 bit."""

    def __init__(self, path: str | Path) -> None:
        """Raises ``OSError`` where the file could not be written."""
        self._path = _writable(path)
        self._file: BinaryIO | None = None

    def write(self, waveform: NDArray[np.float32]) -> None:
        if len(waveform):
            self._file = self._file or open(self._path, "wb")
            self._file.write(pcm16(waveform))
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def open_output(name: str, audio_format: str) -> AudioWriter:
    """name: a path, or ``-`` for the standard output. audio_format: one of ``FORMATS``. Raises ``OSError``."""
    if name == STANDARD_OUTPUT:
        return StreamWriter(sys.stdout.buffer, has_header=audio_format == "wav")
    return WavWriter(name) if audio_format == "wav" else RawWriter(name)


def _writable(path: str | Path) -> Path:
    path = Path(path)
    target = path if path.exists() else path.parent
    if path.is_dir() or not target.exists() or not os.access(target, os.W_OK):
        raise OSError(f"{path} cannot be written; name a file in a folder that exists and is yours to write to.")
    return path


def pcm16(waveform: NDArray[np.float32]) -> bytes:
    """Little-endian samples of 16 bit."""
    samples: bytes = np.rint(np.clip(waveform, -1.0, 1.0) * INT16_MAX).astype("<i2").tobytes()
    return samples


def _comment(text: str) -> bytes:
    """A chunk of a RIFF file."""
    value = text.encode("ascii") + b"\0"
    entry = b"INFOICMT" + len(value).to_bytes(4, "little") + value + b"\0" * (len(value) % 2)
    return b"LIST" + len(entry).to_bytes(4, "little") + entry


_COMMENT = _comment(SYNTHETIC)


def _header_of_unknown_length(sample_rate: int) -> bytes:
    """Players read to the end of the stream where both sizes, four bytes each, are the largest number."""
    unknown = b"\xff\xff\xff\xff"
    kind = struct.pack("<IHHIIHH", 16, 1, 1, sample_rate, 2 * sample_rate, 2, 16)  # PCM, mono, 16 bit
    return b"RIFF" + unknown + b"WAVEfmt " + kind + b"data" + unknown
