"""Tensors of a Hugging Face folder: ``model.safetensors``, or the files that ``model.safetensors.index.json`` names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from bistream.errors import CheckpointError

FILE_NAME = "model.safetensors"
INDEX_NAME = f"{FILE_NAME}.index.json"


def save_tensors(state: Mapping[str, Tensor], path: Path) -> None:
    """Raises ``OSError`` where the file cannot be written."""
    try:
        save_file(dict(state), str(path), metadata={"format": "pt"})  # transformers refuses a file without this
    except SafetensorError as error:
        raise OSError(f"{path} could not be written ({error}); free some space or name another folder.") from error
    path.chmod(0o644)  # the library makes it private, and servers often run as another user


def load_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of the folder. Raises ``CheckpointError`` naming a file that is missing or damaged."""
    names = [FILE_NAME]
    try:
        if (folder / INDEX_NAME).is_file():
            names = sorted(set(json.loads((folder / INDEX_NAME).read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{folder / INDEX_NAME} could not be read ({type(error).__name__}); make the checkpoint again.") from error
    state: dict[str, Tensor] = {}
    for name in names:
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder / name} is missing; name the folder of a merged checkpoint, or make it again.")
        try:
            state |= load_file(str(folder / name))
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{folder / name} could not be read ({type(error).__name__}); make the checkpoint again.") from error
    return state
