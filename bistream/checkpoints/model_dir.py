"""Is this directory a checkpoint that the server can load? Looked at in milliseconds, before anything is loaded. No torch."""

from __future__ import annotations

import json
from pathlib import Path

from bistream.checkpoints.config import CheckpointConfig
from bistream.checkpoints.files import check_whole, family_of
from bistream.checkpoints.reader import read_config
from bistream.errors import CheckpointError
from bistream.families.registry import YAML_NAMES


def check_model_dir(model_dir: Path) -> CheckpointConfig:
    """The sizes of the networks. Raises ``CheckpointError`` that says what the directory is instead, or which file is at fault.

    Weights are not read: their keys and shapes are compared when they are loaded.
    """
    _check_directory(model_dir)
    family = family_of(model_dir)
    for names in family.required_files:
        present = [name for name in names if (model_dir / name).is_file()]
        if not present:
            raise CheckpointError(f"{model_dir} has no {names[0]}; {_advice(model_dir, family.repository)}")
        for name in present:
            check_whole(model_dir, name)
    for name in family.text_files:
        if name.endswith(".json"):
            _check_json(model_dir, name)
    return read_config(model_dir)


def _check_directory(model_dir: Path) -> None:
    if not model_dir.exists():
        raise CheckpointError(f"The model directory {model_dir} does not exist; correct its name, or download it with: bash run.sh 0 0")
    if not model_dir.is_dir():
        raise CheckpointError(f"{model_dir} is a file; name the directory that holds the yaml, llm.pt and the other files.")
    if not any(model_dir.iterdir()):
        raise CheckpointError(f"The model directory {model_dir} is empty; correct its name, or download it with: bash run.sh 0 0")


def _advice(model_dir: Path, repository: str) -> str:
    inside = sorted(path for path in model_dir.iterdir() if any((path / name).is_file() for name in YAML_NAMES))
    if inside:
        return f"name the directory inside it: {inside[0]}"
    return f"complete the directory, or name that of {repository}."


def _check_json(model_dir: Path, name: str) -> None:
    try:
        json.loads((model_dir / name).read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{name} could not be read ({type(error).__name__}); the file is damaged, download it again.") from error
