"""API keys: a file with one key per line, and the headers in which clients send theirs. A key is never logged."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from pathlib import Path

from bistream.errors import ConfigError
from gateway.refusals import UnauthenticatedError

MIN_KEY_LENGTH = 16
HEADERS = ("authorization", "x-api-key", "xi-api-key")
_MISSING = "No valid API key came with the request; send one as `authorization: Bearer KEY` or `x-api-key: KEY`."


class Keys:
    """The keys of one file, as digests. Every look-up compares with all of them, in constant time."""

    def __init__(self, names_by_key: Mapping[str, str]) -> None:
        self._entries = [(_digest(key), name) for key, name in names_by_key.items()]

    def name_of(self, headers: Mapping[str, str]) -> str:
        """The name of the key in a request's headers (lower-case names). Raises ``UnauthenticatedError``."""
        digest = _digest(_key_in(headers))
        found: str | None = None
        for known, name in self._entries:
            if hmac.compare_digest(known, digest):
                found = name
        if found is None:
            raise UnauthenticatedError(_MISSING)
        return found

    @classmethod
    def read(cls, path: Path) -> Keys:
        """``KEY [NAME]`` per line; empty lines and those that begin with # are skipped. Raises ``ConfigError``."""
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"The API keys {path} cannot be read ({type(error).__name__}); name a text file with one key per line."
            ) from None
        names: dict[str, str] = {}
        for number, line in enumerate(lines, 1):
            words = line.split(maxsplit=1)
            if not words or words[0].startswith("#"):
                continue
            if not words[0].isascii():
                raise ConfigError(f"The API key in line {number} of {path} has characters that no header can carry; use ASCII.")
            if len(words[0]) < MIN_KEY_LENGTH:
                raise ConfigError(f"The API key in line {number} of {path} has fewer than {MIN_KEY_LENGTH} characters; use a longer one.")
            name = words[1].strip() if len(words) > 1 else f"key-{_digest(words[0]).hex()[:8]}"  # the same wherever it stands
            if words[0] in names or name in names.values():
                raise ConfigError(f"The API key or the name in line {number} of {path} stands there twice; remove one.")
            names[words[0]] = name
        if not names:
            raise ConfigError(f"The file of API keys {path} holds no key; write one per line.")
        return cls(names)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _key_in(headers: Mapping[str, str]) -> str:
    """The first key of the headers; empty when there is none."""
    scheme, _, rest = headers.get("authorization", "").partition(" ")
    if scheme.lower() in ("bearer", "token") and rest.strip():
        return rest.strip()
    return headers.get("x-api-key") or headers.get("xi-api-key") or ""
