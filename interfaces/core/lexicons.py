"""Lexicons by name, which vendors call pronunciation dictionaries: files of the operator's, read once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bistream.contract.checks import SPEAKER_NAME_PATTERN
from bistream.contract.lexicon import read_lexicon, read_lexicon_file, written_lexicon
from bistream.errors import ConfigError, InvalidInputError
from interfaces.core.values import Values


class Lexicons:
    def __init__(self, by_name: Mapping[str, str] | None = None) -> None:
        """by_name: each as JSON."""
        self._by_name = by_name or {}

    @classmethod
    def read(cls, folder: Path | None) -> Lexicons:
        """Those of the files NAME.json; None: there are none. Raises ``ConfigError``."""
        if folder is None:
            return cls()
        if not folder.is_dir():
            raise ConfigError(f"There is no folder {folder}; correct --lexicons-folder.")
        by_name = {}
        for path in sorted(folder.glob("*.json")):
            if SPEAKER_NAME_PATTERN.match(path.stem) is None:
                raise ConfigError(f"The lexicon {path} needs a name of 1 to 64 letters, digits, _ and -; rename it.")
            try:
                read_lexicon_file(path)
                by_name[path.stem] = path.read_text(encoding="utf-8")
            except InvalidInputError as error:
                raise ConfigError(f"The lexicon {path} cannot be used: {error.sentence}") from None
        return cls(by_name)

    def added_to(self, values: Values, names: Sequence[str]) -> Values:
        """values: with a lexicon of the request's own or without one. Where several have a phrase, the request's counts, then the first.

        Raises ``InvalidInputError`` for an unknown name and for a wrong lexicon of the request.
        """
        if not names:
            return values
        joined: dict[str, Any] = {}
        own = str(values.get("lexicon", ""))
        for text in (*(self._found(name) for name in reversed(names)), own):
            if read_lexicon(text):
                joined |= json.loads(text)
        return {**values, "lexicon": written_lexicon(joined)}

    def _found(self, name: str) -> str:
        if name not in self._by_name:
            raise InvalidInputError(f"There is no pronunciation dictionary {name[:64]!r}; ask the operator for their names.")
        return self._by_name[name]
