"""Data sets of benchmarks and inference scripts: what to say, and in which voice.

A row has the columns of ``yuekai/seed_tts`` on the Hugging Face hub: ``id``, ``prompt_audio``, ``prompt_text``, ``target_text``; and, where
it has it as ``yuekai/seed_tts_cosy2`` does, ``target_audio_cosy2_tokens`` (speech tokens of the target). Sources:

- a Parquet file; ``prompt_audio`` is {"bytes", "path"}, as the ``datasets`` library writes recordings, or a path;
- a JSONL file with one row per line, ``prompt_audio`` (or ``file_name``, as in an audio folder) being a path relative to the file;
- a manifest (``.lst``, ``.txt``) with lines ``id|prompt_text|prompt_audio|target_text``, as upstream's ``--manifest-path``;
- a folder that holds such files, those of one split being ``SPLIT.jsonl``, ``SPLIT-00000-of-00001.parquet`` or ``SPLIT/0000.parquet``;
- OWNER/NAME of a data set on the hub, of which only the split's files are downloaded, once.

Every problem is an ``InvalidInputError`` with one sentence. Parquet and the hub need requirements/benchmarks.txt.
"""

from __future__ import annotations

import importlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bistream.errors import InvalidInputError

COLUMNS = ("id", "prompt_audio", "prompt_text", "target_text")
TOKENS_COLUMN = "target_audio_cosy2_tokens"
SUFFIXES = (".parquet", ".jsonl", ".lst", ".txt")
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_SHARD = re.compile(r"(?P<split>.+?)-\d+-of-\d+")


@dataclass(frozen=True)
class Row:
    """id: a file name. prompt_audio: a file that soundfile reads. target_tokens: speech codes of the target, where the set has them."""

    id: str
    prompt_audio: Path
    prompt_text: str
    target_text: str
    target_tokens: tuple[int, ...] = ()


def read_rows(source: str, split: str | None, recordings: Path, limit: int | None = None) -> list[Row]:
    """The first ``limit`` rows, at least one. recordings: folder for those that are stored inside a Parquet file."""
    return _collect(_records(source, split), source, recordings, limit)


def read_manifest(path: Path) -> list[Row]:
    """Of a manifest with any name."""
    return _collect(_read_manifest(path), str(path), path.parent, None)


def optional(module: str, purpose: str) -> Any:
    """A module that only some users need. Raises ``InvalidInputError`` with the way to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InvalidInputError(f"{purpose} needs a package ({error}); run: pip install -r requirements/benchmarks.txt") from None


Record = tuple[str, Mapping[str, Any], Path]  # where it stands, its columns, the folder of relative paths


def _collect(records: Iterator[Record], source: str, recordings: Path, limit: int | None) -> list[Row]:
    rows: dict[str, Row] = {}
    for place, values, folder in itertools.islice(records, limit):
        texts = {name: _text(place, name, values) for name in ("id", "prompt_text", "target_text")}
        name = texts["id"]
        if name in rows or Path(name).name != name:
            raise InvalidInputError(f"{place} has the id {name!r}, which is taken or not a file name; choose another.")
        audio = _audio(place, values["prompt_audio"], folder, recordings, len(rows))
        rows[name] = Row(name, audio, texts["prompt_text"], texts["target_text"], _tokens(place, values))
    if not rows:
        raise InvalidInputError(f"The data set {source} has no rows; give one with at least one.")
    return list(rows.values())


def _records(source: str, split: str | None) -> Iterator[Record]:
    path = Path(source)
    if path.is_dir():
        files = _of_split([str(file.relative_to(path)) for file in path.rglob("*") if file.suffix in SUFFIXES], split, source)
        paths = [path / name for name in files]
    elif path.is_file():
        paths = [path]
    elif _HUB_NAME.fullmatch(source) and path.suffix not in SUFFIXES:
        paths = _from_hub(source, split)
    else:
        raise InvalidInputError(f"{source} does not exist; give a Parquet or JSONL file, a manifest, a folder, or OWNER/NAME of the hub.")
    for file in paths:
        yield from _READERS.get(file.suffix, _unknown_format)(file)


def _of_split(files: Sequence[str], split: str | None, source: str) -> list[str]:
    """Names of the files of one split, in order. The kind that comes first in ``SUFFIXES`` counts: a folder may hold notes beside it."""
    for suffix in SUFFIXES:
        found = sorted(name for name in files if name.endswith(suffix))
        splits = sorted({_split_of(Path(name)) for name in found})
        if split is not None:
            found = [name for name in found if _split_of(Path(name)) == split]
        elif len(splits) > 1:
            raise InvalidInputError(f"{source} has the splits {', '.join(splits)}; choose one with --split.")
        if found:
            return found
        if splits:
            raise InvalidInputError(f"{source} has no split {split}; choose one of {', '.join(splits)} with --split.")
    raise InvalidInputError(f"{source} holds no {', '.join(SUFFIXES)} file; give a data set.")


def _split_of(path: Path) -> str:
    shard = _SHARD.fullmatch(path.stem)
    if shard is not None:
        return shard["split"]
    return path.parent.name if path.stem.isdigit() else path.stem


def _from_hub(name: str, split: str | None) -> list[Path]:
    hub = optional("huggingface_hub", "Downloading a data set")
    try:
        try:
            files = hub.HfApi().list_repo_files(name, repo_type="dataset")
            wanted = _of_split([file for file in files if file.endswith(".parquet")], split, name)
            folder = Path(hub.snapshot_download(name, repo_type="dataset", allow_patterns=wanted))
        except InvalidInputError:
            raise
        except Exception:  # no network: what was downloaded before
            folder = Path(hub.snapshot_download(name, repo_type="dataset", local_files_only=True))
            wanted = _of_split([str(file.relative_to(folder)) for file in folder.rglob("*.parquet")], split, name)
    except InvalidInputError:
        raise
    except Exception as error:  # of several libraries below the hub's
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InvalidInputError(
            f"The data set {name} could not be downloaded ({reason}); give a local file or folder, or set HF_TOKEN if it is gated."
        ) from None
    return [folder / file for file in wanted]


def _read_parquet(path: Path) -> Iterator[Record]:
    parquet = optional("pyarrow.parquet", "Reading Parquet")
    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            _check_columns(str(path), names)
            wanted = [name for name in (*COLUMNS, TOKENS_COLUMN) if name in names]
            number = 0
            for batch in file.iter_batches(batch_size=16, columns=wanted):
                for values in batch.to_pylist():
                    number += 1
                    yield f"Row {number} of {path}", values, path.parent
    except (OSError, ValueError) as error:  # pyarrow's errors are ValueErrors
        raise InvalidInputError(f"{path} could not be read as Parquet ({error}); give another file.") from None


def _read_jsonl(path: Path) -> Iterator[Record]:
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        place = f"Line {number} of {path}"
        try:
            values = json.loads(line)
        except ValueError:
            values = None
        if not isinstance(values, dict):
            raise InvalidInputError(f"{place} is not a JSON object; write one row per line.")
        if "file_name" in values:
            values.setdefault("prompt_audio", values["file_name"])
        _check_columns(place, list(values))
        yield place, values, path.parent


def _read_manifest(path: Path) -> Iterator[Record]:
    """Lines ``id|prompt_text|prompt_audio|target_text``; empty lines are skipped, and a recording of the target, as Seed-TTS-eval has."""
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        place, fields = f"Line {number} of {path}", [field.strip() for field in line.split("|")]
        if len(fields) not in (4, 5) or not all(fields[:4]):
            raise InvalidInputError(f"{place} is not utt|prompt_text|prompt_wav|target_text; correct it.")
        name, prompt_text, prompt_audio, target_text = fields[:4]
        yield place, {"id": name, "prompt_text": prompt_text, "prompt_audio": prompt_audio, "target_text": target_text}, path.parent


def _unknown_format(path: Path) -> Iterator[Record]:
    raise InvalidInputError(f"{path} is not a data set; give one of the formats {', '.join(SUFFIXES)}.")


_READERS = {".parquet": _read_parquet, ".jsonl": _read_jsonl, ".lst": _read_manifest, ".txt": _read_manifest}


def _check_columns(place: str, names: Sequence[str]) -> None:
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        raise InvalidInputError(f"{place} has the columns {', '.join(names)}, but not {', '.join(missing)}; rename or add them.")


def _text(place: str, name: str, values: Mapping[str, Any]) -> str:
    text = values[name]
    if not isinstance(text, str) or not text.strip():
        raise InvalidInputError(f"{place} has no {name}; write a text.")
    return text


def _tokens(place: str, values: Mapping[str, Any]) -> tuple[int, ...]:
    tokens = values.get(TOKENS_COLUMN) or ()
    if not isinstance(tokens, list | tuple) or not all(isinstance(token, int) for token in tokens):
        raise InvalidInputError(f"{place} has a {TOKENS_COLUMN} that is not a list of integers; correct it.")
    return tuple(tokens)


def _audio(place: str, value: Any, folder: Path, recordings: Path, number: int) -> Path:
    """The file of a recording; one that the row holds is written into ``recordings``."""
    content = value.get("bytes") if isinstance(value, dict) else None
    name = value.get("path") if isinstance(value, dict) else value
    if isinstance(content, bytes):
        path = recordings / f"{number:05d}{Path(name or '').suffix or '.wav'}"
        path.write_bytes(content)
        return path
    if not isinstance(name, str) or not name:
        raise InvalidInputError(f"{place} has no recording in prompt_audio; give a path, or the bytes of an audio file.")
    if not (folder / name).is_file():
        raise InvalidInputError(f"{place} names the recording {folder / name}, which does not exist; correct it.")
    return folder / name


def read_lines(path: Path) -> Sequence[str]:
    """Raises ``InvalidInputError`` for a file that is not there or not UTF-8."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{path} could not be read as UTF-8 text ({error}); name another file.") from None
