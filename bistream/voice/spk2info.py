"""Reads upstream's ``spk2info.pt``: named speakers in, ``VoicePrompt`` per speaker out. Needs torch for files of old or unusual kinds only.

Three forms of an entry are known:

1. a fixed speaker: ``embedding`` [1, 192] alone;
2. a saved zero-shot speaker: ``prompt_text`` as text ids [1, L], ``flow_prompt_speech_token`` [1, P], ``prompt_speech_feat``
   [1, 2P, 80], ``flow_embedding`` [1, 192] (the language model's copies are equal);
3. the Triton runtime's: ``prompt_text`` as a string, ``speech_token`` [1, P], ``speech_feat`` [1, 2P, 80], ``embedding``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bistream.errors import CheckpointError, InvalidInputError
from bistream.types import VoicePrompt
from bistream.voice.build import make_voice_prompt
from bistream.voice.features import MEL_BINS
from bistream.voice.tensor_file import UnknownContentError, read_tensors

logger = logging.getLogger(__name__)

DecodeText = Callable[[Sequence[int]], str]


def read_spk2info(path: Path, decode_text: DecodeText) -> dict[str, VoicePrompt]:
    """All speakers of the file. decode_text: text ids to text, for form 2.

    No code from the file is run. Raises ``CheckpointError`` naming the file, and the speaker
    where one entry is the cause.
    """
    return {name: _voice(path.name, name, entry, decode_text) for name, entry in _read_table(path).items()}


def read_presets(path: Path, decode_text: DecodeText) -> dict[str, VoicePrompt]:
    """``read_spk2info`` for a server: an entry of an unknown form is left out, with a warning in the log."""
    voices = {}
    for name, entry in _read_table(path).items():
        try:
            voices[name] = _voice(path.name, name, entry, decode_text)
        except CheckpointError as error:
            logger.warning("a speaker is left out: %s", error)
    return voices


def _read_table(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise CheckpointError(f"{path.name} does not exist; name the spk2info.pt to import.")
    try:
        speakers = read_tensors(path)
    except UnknownContentError:
        speakers = _read_with_torch(path)
    if not isinstance(speakers, dict):
        raise CheckpointError(f"{path.name} does not hold a table of speakers; name another file.")
    return {str(name): entry for name, entry in speakers.items()}


def _read_with_torch(path: Path) -> Any:
    import torch  # noqa: PLC0415  (see tensor_file)

    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many exception types for a damaged file
        raise CheckpointError(
            f"{path.name} could not be read ({type(error).__name__}); it is damaged or holds more than tensors."
        ) from error


def _voice(file_name: str, speaker: str, entry: Any, decode_text: DecodeText) -> VoicePrompt:
    try:
        if not isinstance(entry, Mapping):
            raise TypeError(f"it is a {type(entry).__name__}")
        if "speech_feat" in entry:
            arrays = _first(entry, "speech_token"), _first(entry, "speech_feat"), _first(entry, "embedding")
            return make_voice_prompt(str(entry["prompt_text"]), *arrays)
        if "prompt_speech_feat" in entry:
            text = decode_text([int(index) for index in _first(entry, "prompt_text")])
            return make_voice_prompt(
                text, _first(entry, "flow_prompt_speech_token"), _first(entry, "prompt_speech_feat"), _first(entry, "flow_embedding")
            )
        embedding = _first(entry, "embedding")
        return make_voice_prompt("", np.zeros(0, dtype=np.int32), np.zeros((0, MEL_BINS), dtype=np.float32), embedding)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, InvalidInputError) as error:
        raise CheckpointError(
            f"{file_name}: the entry of speaker {speaker!r} has none of the three known forms ({type(error).__name__}: {error}); "
            "it needs an embedding and, for a recording, matching tokens and features."
        ) from error


def _first(entry: Mapping[str, Any], key: str) -> NDArray[Any]:
    """The only row of a tensor [1, ...], which is an array or torch's."""
    tensor = entry[key]
    if tensor.shape[0] != 1:
        raise TypeError(f"{key} has shape {list(tensor.shape)}, not one row")
    row = tensor[0]
    array: NDArray[Any] = row if isinstance(row, np.ndarray) else (row.float() if row.is_floating_point() else row).numpy()
    return array.astype(np.float32) if array.dtype.kind == "f" else array
