"""Audio files of the clients: reads a reference recording, writes a WAV file that grows while audio arrives."""

from __future__ import annotations

import wave
from pathlib import Path
from types import TracebackType

import numpy as np
import soundfile
from numpy.typing import NDArray

from bistream.rates import REFERENCE_SAMPLE_RATE, SAMPLE_RATE
from bistream.resample import resample

INT16_MAX = 32767


def read_reference(path: str | Path) -> NDArray[np.float32]:
    """float32 [N], 16 kHz mono in [-1, 1], from any file that soundfile reads. Raises ``ValueError`` with a sentence for the user."""
    try:
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)  # [N, channels]
    except (OSError, soundfile.LibsndfileError) as error:
        raise ValueError(f"{path} could not be read as audio ({error}); give a WAV or FLAC file.") from None
    if len(samples) == 0:
        raise ValueError(f"{path} contains no audio; give a recording of 0.5 to 30 seconds.")
    mono: NDArray[np.float32] = samples.mean(axis=1, dtype=np.float32)
    return mono if rate == REFERENCE_SAMPLE_RATE else resample(mono, rate, REFERENCE_SAMPLE_RATE)


class WavWriter:
    """24 kHz mono, 16 bit. After every ``write`` the file is complete and playable, whatever happens next."""

    def __init__(self, path: str | Path) -> None:
        """Raises ``OSError`` when the file cannot be written."""
        self._file = open(path, "wb")
        self._wave = wave.open(self._file, "wb")
        self._wave.setnchannels(1)
        self._wave.setsampwidth(2)
        self._wave.setframerate(SAMPLE_RATE)
        self.write(np.zeros(0, np.float32))

    def write(self, waveform: NDArray[np.float32]) -> None:
        """float32 [N] in [-1, 1]."""
        samples = np.rint(np.clip(waveform, -1.0, 1.0) * INT16_MAX).astype("<i2")
        self._wave.writeframes(samples.tobytes())  # corrects the sizes in the header
        self._file.flush()

    def close(self) -> None:
        self._wave.close()
        self._file.close()

    def __enter__(self) -> WavWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
