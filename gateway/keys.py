"""API keys: a file with one key per line, and the headers in which clients send theirs. A key is never logged."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from bistream.contract.lexicon import joined_lexicon, lexicon_text
from bistream.errors import ConfigError, InvalidInputError, UnauthenticatedError

MIN_KEY_LENGTH = 16
HEADERS = ("authorization", "x-api-key", "xi-api-key")
_LEXICON, _MARKED = re.compile(r"(?:^|\s)lexicon="), re.compile(r"(?:^|\s)watermark=on\s*$")
_LIKE_MARKED = re.compile(r"(?:^|\s)watermark\s*(?:[=:]|$)", re.IGNORECASE)  # a slip of the pen, not a name
_MISSING = "No valid API key came with the request; send one as `authorization: Bearer KEY` or `x-api-key: KEY`."


class Keys:
    """The keys of one file, as digests. Every look-up compares with all of them, in constant time."""

    def __init__(self, names_by_key: Mapping[str, str], lexicons: Mapping[str, str] | None = None, marked: Collection[str] = ()) -> None:
        """lexicons: as JSON, by the names of their keys. marked: names of the keys whose audio gets the watermark."""
        self._entries = [(_digest(key), name) for key, name in names_by_key.items()]
        self._lexicons = lexicons or {}
        self._marked = frozenset(marked)

    def name_of(self, headers: Mapping[str, str]) -> str:
        """The name of the key in a request's headers (lower-case names). Raises ``UnauthenticatedError``."""
        digest = _digest(key_in(headers))
        found: str | None = None
        for known, name in self._entries:
            if hmac.compare_digest(known, digest):
                found = name
        if found is None:
            raise UnauthenticatedError(_MISSING)
        return found

    def lexicon_of(self, name: str | None) -> str:
        """The lexicon of a key, as JSON; empty: it has none."""
        return "" if name is None else self._lexicons.get(name, "")

    def is_marked(self, name: str | None) -> bool:
        """Whether the audio of a key gets the watermark, on a server that marks on request."""
        return name in self._marked

    @classmethod
    def read(cls, path: Path) -> Keys:
        """``KEY [NAME] [watermark=on] [lexicon=FILE]`` per line, FILE beside this one; blank lines and # comments are skipped.

        Raises ``ConfigError``.
        """
        try:
            lines = path.read_text(encoding="utf-8-sig").splitlines()  # some editors begin a file with a byte order mark
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"The API keys {path} cannot be read ({type(error).__name__}); name a text file with one key per line."
            ) from None
        names: dict[str, str] = {}
        lexicons: dict[str, str] = {}
        marked: list[str] = []
        for number, line in enumerate(lines, 1):
            words = line.split(maxsplit=1)
            if not words or words[0].startswith("#"):
                continue
            if not words[0].isascii():
                raise ConfigError(f"The API key in line {number} of {path} has characters that no header can carry; use ASCII.")
            if len(words[0]) < MIN_KEY_LENGTH:
                raise ConfigError(f"The API key in line {number} of {path} has fewer than {MIN_KEY_LENGTH} characters; use a longer one.")
            given, *files = _LEXICON.split("".join(words[1:]), maxsplit=1)
            given, is_marked = _MARKED.subn("", given)
            if any(map(_LIKE_MARKED.search, (given, *files))):
                raise ConfigError(f"Line {number} of {path} cannot be read; write KEY [NAME] [watermark=on] [lexicon=FILE].")
            name = given.strip() or f"key-{_digest(words[0]).hex()[:8]}"  # the same wherever it stands
            if words[0] in names or name in names.values():
                raise ConfigError(f"The API key or the name in line {number} of {path} stands there twice; remove one.")
            names[words[0]] = name
            marked += [name] * is_marked
            for file in files:
                lexicons[name] = _read_lexicon(path.parent / file.strip(), f"line {number} of {path}")
        if not names:
            raise ConfigError(f"The file of API keys {path} holds no key; write one per line.")
        return cls(names, lexicons, marked)


def _read_lexicon(path: Path, place: str) -> str:
    """As requests will carry it. place: where it is named. Raises ``ConfigError``."""
    try:
        return joined_lexicon(lexicon_text(path))
    except InvalidInputError as error:
        raise ConfigError(f"The lexicon in {place} cannot be used: {error.sentence}") from None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def key_in(headers: Mapping[str, str]) -> str:
    """The first key of the headers; empty when there is none."""
    scheme, _, rest = headers.get("authorization", "").partition(" ")
    if scheme.lower() in ("bearer", "token") and rest.strip():
        return rest.strip()
    return headers.get("x-api-key") or headers.get("xi-api-key") or ""
