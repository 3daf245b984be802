"""The teachers: flite by ctypes and festival as a program, both from unpacked Debian packages. Texts in; waveforms and phones out.

Nothing is installed: ``Engines`` gets the folder into which ``packages.py`` unpacked them.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
import wave
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bistream.audio.resample import resample
from bistream.families.cosyvoice2 import AUDIO_FORMAT
from training.phones import FRAMES_PER_SECOND, frames_of
from training.voices import Voice

LIBRARIES = "usr/lib/x86_64-linux-gnu"
FESTIVAL_DATA = "usr/share/festival"
TOKEN_SAMPLES = 960  # of 24 kHz; utterances are padded to whole speech tokens
_PCM = 32768.0
_LEVEL = 0.07  # root mean square of every utterance, so that the voices are equally loud
_PEAK = 0.95
_FESTIVAL_TIMEOUT_S = 900.0  # a shard takes 8 s on an idle core


@dataclass(frozen=True)
class Utterance:
    """waveform: int16 [N] at 24 kHz, N a multiple of 960; phones: uint8 [N / 480], one in 20 ms."""

    waveform: NDArray[np.int16]
    phones: NDArray[np.uint8]


class _Wave(ctypes.Structure):
    """``cst_wave`` of flite 2."""

    _fields_ = [
        ("type", ctypes.c_char_p),
        ("sample_rate", ctypes.c_int),
        ("num_samples", ctypes.c_int),
        ("num_channels", ctypes.c_int),
        ("samples", ctypes.POINTER(ctypes.c_short)),
    ]


class _FliteVoice(ctypes.Structure):
    """The first fields of ``cst_voice``."""

    _fields_ = [("name", ctypes.c_char_p), ("features", ctypes.c_void_p)]


class Flite:
    """One voice of flite, in this process."""

    def __init__(self, root: Path, teacher: str, stretch: float) -> None:
        folder = root / LIBRARIES
        for name in ("libasound.so.2", "libflite.so.1", "libflite_usenglish.so.1", "libflite_cmulex.so.1"):
            library = ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL)
            if name == "libflite.so.1":
                self._flite = library
        register = getattr(ctypes.CDLL(str(folder / f"lib{_library_of(teacher)}.so.1")), f"register_{teacher}")
        _declare(self._flite)
        self._flite.flite_init()
        register.restype, register.argtypes = ctypes.POINTER(_FliteVoice), [ctypes.c_char_p]
        self._voice = register(None)
        self._flite.feat_set_float(self._voice.contents.features, b"duration_stretch", stretch)

    def speak(self, text: str) -> tuple[NDArray[np.float32], int, list[tuple[str, float]]]:
        """Waveform in [-1, 1], its rate, (phone, end in seconds)."""
        utterance = self._flite.flite_synth_text(text.encode(), self._voice)
        try:
            found = self._flite.utt_wave(utterance).contents
            samples = np.ctypeslib.as_array(found.samples, (found.num_samples,)).astype(np.float32) / _PCM
            return samples, found.sample_rate, list(self._segments(utterance))
        finally:
            self._flite.delete_utterance(utterance)

    def _segments(self, utterance: int) -> Iterator[tuple[str, float]]:
        item = self._flite.relation_head(self._flite.utt_relation(utterance, b"Segment"))
        while item:
            yield self._flite.item_feat_string(item, b"name").decode(), self._flite.item_feat_float(item, b"end")
            item = self._flite.item_next(item)


def _library_of(teacher: str) -> str:
    return f"flite_{teacher}"


def _declare(library: ctypes.CDLL) -> None:
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    for name, result, arguments in (
        ("flite_synth_text", pointer, [text, pointer]),
        ("utt_wave", ctypes.POINTER(_Wave), [pointer]),
        ("utt_relation", pointer, [pointer, text]),
        ("relation_head", pointer, [pointer]),
        ("item_next", pointer, [pointer]),
        ("item_feat_string", text, [pointer, text]),
        ("item_feat_float", ctypes.c_float, [pointer, text]),
        ("feat_set_float", None, [pointer, text, ctypes.c_float]),
        ("delete_utterance", None, [pointer]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments


@cache
def _flite(root: Path, teacher: str, stretch: float) -> Flite:
    return Flite(root, teacher, stretch)


def _festival(
    root: Path, teacher: str, stretch: float, texts: Sequence[str]
) -> Iterator[tuple[NDArray[np.float32], int, list[tuple[str, float]]] | None]:
    """One process for all texts; None for a text that it could not speak."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = [f"({teacher})", f"(Parameter.set 'Duration_Stretch {stretch})"]
        for number, text in enumerate(texts):
            quoted = text.replace("\\", " ").replace('"', " ")
            script.append(
                f'(let ((utt (SynthText "{quoted}"))) (utt.save.wave utt "{folder}/{number}.wav" \'riff)'
                f' (utt.save.segs utt "{folder}/{number}.segs"))'
            )
        (folder / "script.scm").write_text("\n".join(script), encoding="latin-1")
        data = root / FESTIVAL_DATA
        start = f'(begin (set! libdir "{data}") (set! datadir libdir) (load "{data}/init.scm"))'
        command = [str(root / "usr/bin/festival"), "-q", "-b", start, str(folder / "script.scm")]
        environment = {**os.environ, "LD_LIBRARY_PATH": str(root / LIBRARIES)}
        subprocess.run(command, env=environment, check=False, capture_output=True, timeout=_FESTIVAL_TIMEOUT_S)
        for number in range(len(texts)):
            segments = folder / f"{number}.segs"
            yield (*_read_wave(folder / f"{number}.wav"), _read_segments(segments)) if segments.exists() else None


def _read_wave(path: Path) -> tuple[NDArray[np.float32], int]:
    with wave.open(str(path), "rb") as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), dtype=np.int16)
        return samples.astype(np.float32) / _PCM, file.getframerate()


def _read_segments(path: Path) -> list[tuple[str, float]]:
    lines = path.read_text(encoding="latin-1").split("#\n", 1)[1].split("\n")
    return [(fields[2], float(fields[0])) for line in lines if len(fields := line.split()) == 3]


def speak(root: Path, voice: Voice, texts: Sequence[str]) -> Iterator[Utterance | None]:
    """All texts in one voice, in order; None for a text that the teacher cannot speak."""
    if voice.engine == "flite":
        spoken: Iterator[tuple[NDArray[np.float32], int, list[tuple[str, float]]] | None]
        flite = _flite(root, voice.teacher, voice.shift)
        spoken = (flite.speak(text) for text in texts)
    else:
        spoken = _festival(root, voice.teacher, voice.shift, texts)
    for item in spoken:
        yield None if item is None else _utterance(*item, voice.shift)


def _utterance(samples: NDArray[np.float32], rate: int, segments: list[tuple[str, float]], shift: float) -> Utterance:
    waveform = resample(samples, round(rate * shift), AUDIO_FORMAT.sample_rate)
    loudest, level = float(np.abs(waveform).max()) + 1e-6, float(np.sqrt(np.mean(waveform**2))) + 1e-6
    waveform = waveform * min(_LEVEL / level, _PEAK / loudest)
    waveform = np.pad(waveform, (0, -len(waveform) % TOKEN_SAMPLES))
    frames = len(waveform) * FRAMES_PER_SECOND // AUDIO_FORMAT.sample_rate
    phones = frames_of([(name, end / shift) for name, end in segments], frames)
    return Utterance((waveform * (_PCM - 1)).clip(-_PCM, _PCM - 1).astype(np.int16), phones)
