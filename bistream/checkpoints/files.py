"""What the files of a model directory are, by their names and a few bytes: another model, a placeholder, half a download."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import BinaryIO

from bistream.errors import CheckpointError
from bistream.families.family import Family
from bistream.families.registry import DEFAULT_FAMILY, FAMILIES, OTHER_FILES, OTHER_MODELS

_LONGEST_HEADER = 100_000_000  # of the safetensors library
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_LANGUAGE_MODEL = re.compile(r"^llm: *!new:[\w.]*\.(\w+)", re.MULTILINE)  # upstream's class


def family_of(model_dir: str | Path) -> Family:
    """The family whose yaml the directory has; the yaml may name the class of its language model, which is compared.

    Without a yaml, ``family_of_names``: a missing yaml is reported elsewhere. Raises ``CheckpointError`` for a
    directory of a predecessor, which has files of the same names, and for a yaml of another family.
    """
    if not str(model_dir):  # a process that is given none
        return DEFAULT_FAMILY
    model_dir = Path(model_dir)
    for family in FAMILIES:
        for name in family.yaml_names:
            path = model_dir / name
            if not path.is_file():
                continue
            found = _LANGUAGE_MODEL.search(path.read_text(encoding="utf-8", errors="replace"))
            if found is not None and (title := _title_of(found[1])) not in (None, family.title):
                raise _other_model(str(title), f"{name} names its language model {found[1]}")
            if found is not None or name == family.yaml_names[0]:
                return family
    for name, title in OTHER_FILES.items():
        if (model_dir / name).is_file():
            raise _other_model(title, f"it has {name}")
    return family_of_names({path.name for path in model_dir.iterdir()} if model_dir.is_dir() else set())


def family_of_names(names: set[str]) -> Family:
    """The family of a directory with these files, or files and folders, by their names alone: of the yaml, else of the speech tokenizer,
    else of a folder; else the default."""
    for family in FAMILIES:
        if names & set(family.yaml_names):
            return family
    tops = {name.split("/")[0] for name in names}
    by_tokenizer = (family for family in FAMILIES if family.speech_tokenizer_file in names)
    return next(by_tokenizer, next((family for family in FAMILIES if tops & _folders_of(family)), DEFAULT_FAMILY))


def _folders_of(family: Family) -> set[str]:
    return {name.split("/")[0] for names in family.required_files for name in names if "/" in name}


def _title_of(language_model: str) -> str | None:
    """The model whose yaml names this class; None for a class that is not known."""
    served = {family.language_model: family.title for family in FAMILIES}
    return (served | OTHER_MODELS).get(language_model)


def _other_model(title: str, reason: str) -> CheckpointError:
    served = " or ".join(family.title for family in FAMILIES)
    return CheckpointError(f"The model directory holds {title} ({reason}), whose networks are others; name a whole directory of {served}.")


def check_content(model_dir: str | Path, name: str) -> None:
    """Raises ``CheckpointError`` for a file of Git LFS in which only the address of the content is."""
    with (Path(model_dir) / name).open("rb") as file:
        start = file.read(len(_LFS_POINTER))
    if start == _LFS_POINTER:
        raise CheckpointError(f"{name} is a Git LFS pointer and not the file itself; run `git lfs pull` in the model directory.")


def check_whole(model_dir: Path, name: str) -> None:
    """Raises ``CheckpointError`` for an empty file, a placeholder, and for a file of weights whose end is missing."""
    check_content(model_dir, name)
    path = model_dir / name
    size = path.stat().st_size
    if not size:
        raise CheckpointError(f"{name} is empty; download it again.")
    is_cut = path.suffix in (".pt", ".bin") and not (zipfile.is_zipfile(path) or _is_old_archive(path))
    if is_cut or (path.suffix == ".safetensors" and _safetensors_size(path) != size):
        raise CheckpointError(f"{name} has no end after its {size / 1e6:.1f} MB, as after a download that was cut off; download it again.")
    if path.suffix == ".onnx":
        with path.open("rb") as file:
            if not _ends_with_a_field(file, size):
                raise CheckpointError(f"{name} is damaged or was cut off after {size / 1e6:.1f} MB; download it again.")


def _is_old_archive(path: Path) -> bool:
    """PyTorch's format before version 1.6: a pickle, whose end cannot be seen without reading it."""
    with path.open("rb") as file:
        return file.read(2) == b"\x80\x02"


def _safetensors_size(path: Path) -> int:
    """As its header says: a length of 8 bytes, so many of JSON, and where its last tensor ends behind them. 0 for a header that is none."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = file.read(length) if length <= _LONGEST_HEADER else b""
    try:
        entries = [entry for name, entry in json.loads(header).items() if name != "__metadata__"]
        return 8 + length + max((int(entry["data_offsets"][1]) for entry in entries), default=0)
    except (ValueError, KeyError, TypeError, AttributeError):
        return 0


def _ends_with_a_field(file: BinaryIO, size: int) -> bool:
    """Whether the fields of a protobuf message, which an ONNX file is, fill the file: their lengths are added up, no content is read."""
    try:
        while file.tell() < size:
            kind = _varint(file) & 7
            if kind == 0:
                _varint(file)
            elif kind in (1, 5):
                file.seek(8 if kind == 1 else 4, 1)
            elif kind == 2:
                file.seek(_varint(file), 1)
            else:
                return False
    except EOFError:
        return False
    return file.tell() == size


def _varint(file: BinaryIO) -> int:
    value = shift = 0
    while shift < 64:
        byte = file.read(1)
        if not byte:
            raise EOFError
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
        shift += 7
    raise EOFError
