"""Lexicons by name, which vendors call pronunciation dictionaries, and what API keys set: files of the operator's, read once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bistream.contract.checks import RAW, SPEAKER_NAME_PATTERN
from bistream.contract.lexicon import joined_lexicon, lexicon_text
from bistream.errors import ConfigError, InvalidInputError
from gateway.keys import Keys
from interfaces.core.values import Values


class Lexicons:
    def __init__(self, by_name: Mapping[str, str] | None = None, keys: Keys | None = None) -> None:
        """by_name: each as JSON. keys: with theirs."""
        self._by_name = by_name or {}
        self._keys = keys

    @classmethod
    def read(cls, folder: Path | None, keys: Keys | None = None) -> Lexicons:
        """Those of the files NAME.json; None: there are none. Raises ``ConfigError``."""
        if folder is None:
            return cls(keys=keys)
        if not folder.is_dir():
            raise ConfigError(f"There is no folder {folder}; correct --lexicons-folder.")
        by_name = {}
        for path in sorted(folder.glob("*.json")):
            if SPEAKER_NAME_PATTERN.match(path.stem) is None:
                raise ConfigError(f"The lexicon {path} needs a name of 1 to 64 letters, digits, _ and -; rename it.")
            try:
                by_name[path.stem] = lexicon_text(path)
            except InvalidInputError as error:
                raise ConfigError(f"The lexicon {path} cannot be used: {error.sentence}") from None
        return cls(by_name, keys)

    def added_to(self, values: Values, names: Sequence[str]) -> Values:
        """values: with a lexicon of the request's own or without one. Where several have a phrase, the request's counts, then the first.

        Raises ``InvalidInputError`` for an unknown name and for a wrong lexicon of the request.
        """
        if not names:
            return values
        return {**values, "lexicon": joined_lexicon(str(values.get("lexicon", "")), *map(self._found, names))}

    def of_key(self, values: Values, name: str | None) -> Values:
        """values: of a request with the key of this name, and with its mark; its lexicon counts last, and raw text has none.

        Raises ``InvalidInputError``.
        """
        if self._keys is None:
            return values
        if self._keys.is_marked(name):
            values = {**values, "is_marked": True}
        lexicon = self._keys.lexicon_of(name)
        if not lexicon or values.get("text_normalization") == RAW:
            return values
        return {**values, "lexicon": joined_lexicon(str(values.get("lexicon", "")), lexicon)}

    def _found(self, name: str) -> str:
        if name not in self._by_name:
            raise InvalidInputError(f"There is no pronunciation dictionary {name[:64]!r}; ask the operator for their names.")
        return self._by_name[name]
