"""The results of a benchmark that can be interrupted: one JSON object per line in a file that only grows, and what they were measured with.

A program that is killed loses the rows that it was working on, and at most the line that it was writing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from bistream.errors import InvalidInputError

Record = dict[str, Any]


class Records:
    """The records of ``folder``, those of earlier runs of the program included. A context manager."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        """config: of the benchmark; a folder with records of another one is refused with ``InvalidInputError``. Raises ``OSError``."""
        folder.mkdir(parents=True, exist_ok=True)
        plain, file = json.loads(json.dumps(config)), folder / "config.json"
        self._path = folder / "records.jsonl"
        self.all = read_records(self._path)
        if self.all and file.exists():
            found = json.loads(file.read_text(encoding="utf-8"))
            changed = sorted(key for key in {*found, *plain} if found.get(key) != plain.get(key))
            if changed:
                raise InvalidInputError(
                    f"{folder} has results with another {', '.join(changed)}; choose another --out, or delete it to begin again."
                )
        else:  # without a record nothing was measured, e.g. where the models could not be loaded
            file.write_text(json.dumps(plain, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        if self._path.exists() and not (content := self._path.read_bytes()).endswith(b"\n"):
            self._path.write_bytes(content[: content.rfind(b"\n") + 1])
        self._file = self._path.open("a", encoding="utf-8")

    def add(self, record: Record) -> None:
        """Written at once."""
        self.all.append(record)
        self._file.write(json.dumps(record, ensure_ascii=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Records:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def read_records(path: Path) -> list[Record]:
    """Of a file that may not exist; a last line that was cut off is left out. Raises ``InvalidInputError`` for other damage."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    try:
        return [json.loads(line) for line in lines]
    except ValueError:
        raise InvalidInputError(f"{path} is damaged; choose another --out, or delete its folder to begin again.") from None
