"""What is spoken: sets of sentences of our own, JSONL files with a ``text``, and data sets with recordings.

The built-in sets were written for this project: ``english`` and ``chinese`` (100 each, as a voice agent says them), ``mixed`` (40, both
languages in a sentence), ``hard`` (40: numbers, names, code, repetitions, tongue twisters) and ``paragraphs`` (20).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from bistream.errors import InvalidInputError
from bistream.evaluation.dataset import read_lines, read_rows
from bistream.text.front_end import contains_chinese

FOLDER = Path(__file__).parent / "sentences"
BUILT_IN = ("english", "chinese", "mixed", "hard", "paragraphs")


@dataclass(frozen=True)
class Sentence:
    """number: in all sets, from 0; also its seed. language: ISO 639-1; that of a mixed sentence is zh. recording, transcript: of a voice
    of its own."""

    number: int
    set_name: str
    id: str
    text: str
    language: str
    recording: Path | None = None
    transcript: str = ""


def read_sets(given: Sequence[str], count: int | None) -> list[Sentence]:
    """given: names of built-in sets, or NAME=PATH. count: of each set at most. Raises ``InvalidInputError``."""
    found: list[Sentence] = []
    names = [one.partition("=")[0] for one in given]
    if len(set(names)) < len(names):
        raise InvalidInputError(f"The sets {', '.join(names)} have a name twice; give each one a name of its own.")
    for one in given:
        name, separator, path = one.partition("=")
        if not separator and name not in BUILT_IN:
            raise InvalidInputError(f"There is no set {name!r}; choose one of {', '.join(BUILT_IN)}, or give one as NAME=PATH.")
        rows = _rows(Path(path) if separator else FOLDER / f"{name}.jsonl", path, count)
        found += [Sentence(len(found) + number, name, **row) for number, row in enumerate(rows)]
    return found


def spoken_and_left_out(sentences: Iterable[Sentence], languages: frozenset[str]) -> tuple[list[Sentence], list[str]]:
    """Those in a language of the checkpoint (empty: any), and a line for each set of which some are left out."""
    spoken, left_out = [], dict[str, int]()
    for one in sentences:
        if not languages or one.language in languages:
            spoken.append(one)
        else:
            left_out[one.set_name] = left_out.get(one.set_name, 0) + 1
    known = ", ".join(sorted(languages))
    return spoken, [
        f"{count} sentences of the set {name} were left out: the checkpoint speaks {known}." for name, count in left_out.items()
    ]


def _rows(path: Path, source: str, count: int | None) -> list[dict[str, Any]]:
    """Fields of ``Sentence`` but the first two."""
    if path.suffix == ".jsonl" and path.is_file() and (rows := _texts(path)):
        return rows[:count]
    recordings = Path(mkdtemp(prefix="bistream_recordings_"))  # of a Parquet file; they are read until the program ends
    return [
        {"id": row.id, "text": row.target_text, "language": _language(row.target_text), "recording": row.prompt_audio}
        | {"transcript": row.prompt_text}
        for row in read_rows(source, None, recordings, count)
    ]


def _texts(path: Path) -> list[dict[str, Any]]:
    """Of a file whose rows have a ``text``; none where its first row has not: a data set with recordings."""
    found: list[dict[str, Any]] = []
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        text = row.get("text") if isinstance(row, Mapping) else None
        if text is None and not found:
            return []
        if not isinstance(text, str) or not text.strip():
            raise InvalidInputError(f'Line {number} of {path} is not a JSON object with a text; write {{"text": "..."}}.')
        found.append({"id": str(row.get("id", f"{number:04d}")), "text": text, "language": row.get("language") or _language(text)})
    return found


def _language(text: str) -> str:
    return "zh" if contains_chinese(text) else "en"
