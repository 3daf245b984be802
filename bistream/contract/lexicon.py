"""A lexicon: words and phrases, and how they are spoken. Read from JSON, of a request's ``lexicon`` or of a file. Pure."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from bistream.contract.checks import is_speakable
from bistream.errors import InvalidInputError


class Phonemes(NamedTuple):
    """written: in an alphabet of ``text.phonemes``."""

    alphabet: str
    written: str


Lexicon = Mapping[str, str | Phonemes]  # phrase -> respelling
NO_LEXICON: Lexicon = MappingProxyType({})
MAX_LEXICON_CHARS = 65_536
MAX_ENTRIES = 1_000
MAX_PHRASE_CHARS = 64  # so much text may be held back while it may still become a phrase
MAX_RESPELLING_CHARS = 128


def read_lexicon(text: str) -> Lexicon:
    """A JSON object of phrases and respellings; blank: none. Raises ``InvalidInputError``."""
    if len(text) > MAX_LEXICON_CHARS:
        raise InvalidInputError(f"The lexicon is longer than {MAX_LEXICON_CHARS} characters; send only the words that the text may have.")
    return _read(text.strip())


@functools.lru_cache(maxsize=64)  # an agent sends the same one with every session
def _read(text: str) -> Lexicon:
    if not text:
        return NO_LEXICON
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError):
        entries = None
    if not isinstance(entries, dict):
        raise InvalidInputError('The lexicon must be a JSON object, such as {"Nguyen": "win"}; correct it.')
    if len(entries) > MAX_ENTRIES:
        raise InvalidInputError(f"The lexicon has more than {MAX_ENTRIES} entries; send only the words that the text may have.")
    return MappingProxyType({phrase: _entry(phrase, value) for phrase, value in entries.items()})


def written_lexicon(entries: Mapping[str, Any]) -> str:
    """As JSON that counts as many characters as there are."""
    return json.dumps(dict(entries), ensure_ascii=False).encode("utf-8", "replace").decode("utf-8")


def joined_lexicon(*texts: str) -> str:
    """The entries of several, as ``read_lexicon`` takes them; the first that has a phrase counts. Raises ``InvalidInputError``."""
    return _joined(*(text.strip() for text in texts if read_lexicon(text)))


@functools.lru_cache(maxsize=64)
def _joined(*texts: str) -> str:
    joined: dict[str, Any] = {}
    for text in reversed(texts):
        joined |= json.loads(text)
    check_lexicon(written := written_lexicon(joined))
    return written


def _entry(phrase: str, value: Any) -> str | Phonemes:
    if len(phrase) > MAX_PHRASE_CHARS or not is_speakable(phrase):
        raise InvalidInputError(f"The lexicon has the phrase {phrase[:20]!r}; give it a letter and at most {MAX_PHRASE_CHARS} characters.")
    match value:
        case str():
            entry: str | Phonemes = value
        case {"alphabet": str(alphabet), "ph": str(written)} if len(value) == len(Phonemes._fields):
            entry = Phonemes(alphabet, written)
        case _:
            raise InvalidInputError(
                f'The lexicon must give {phrase!r} a respelling or phonemes, "win" or {{"alphabet": "cmu-arpabet", "ph": "W IH1 N"}}.'
            )
    said = entry if isinstance(entry, str) else entry.written
    if len(said) > MAX_RESPELLING_CHARS or not is_speakable(said):
        raise InvalidInputError(
            f"The lexicon respells {phrase!r} without a letter or with more than {MAX_RESPELLING_CHARS} characters; correct it."
        )
    return entry


def check_lexicon(text: str) -> None:
    """Raises ``InvalidInputError``."""
    read_lexicon(text)


def lexicon_text(path: str | Path) -> str:
    """Of a file, checked. Raises ``InvalidInputError``."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")  # some editors begin a file with a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"The lexicon {path} cannot be read ({type(error).__name__}); name a JSON file in UTF-8.") from None
    check_lexicon(text)
    return text
