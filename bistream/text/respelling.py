"""Words and phrases of a lexicon are respelled: a stage of the text preparation.

A phrase with a capital is meant as it is written; one without is meant in capitals as well. Only whole words are found: no letter or digit
stands beside a phrase, unless one of the two is an ideograph. Of several phrases that begin at a word the longest is respelled. A
respelling is not looked at again; numbers in it are read out as those of the text. Phonemes are spoken by models that have tokens for them.

Text is held back only while it is the beginning of a phrase, and a whole phrase until the character after it shows that the word is over.
"""

from __future__ import annotations

import functools
import unicodedata
from bisect import bisect_left

from bistream.contract.lexicon import NO_LEXICON, Lexicon, Phonemes, lexicon_text, read_lexicon
from bistream.errors import ConfigError, InvalidInputError
from bistream.text.characters import Emit, cleaned, is_chinese
from bistream.text.phonemes import phoneme_tokens, private_characters


class Respellings:
    """The phrases of a lexicon, ready to be looked up. Immutable."""

    def __init__(self, lexicon: Lexicon, phonemes: frozenset[str] = frozenset()) -> None:
        """phonemes: tokens that the model has for them. Raises ``InvalidInputError`` for phonemes of the lexicon that it has not."""
        self._of = {
            unicodedata.normalize(form, _plain(phrase)): _spoken(entry, phonemes)
            for phrase, entry in lexicon.items()
            for form in ("NFC", "NFD")  # texts are not normalised yet
        }
        self._phrases = sorted(self._of)

    def may_go_on(self, text: str) -> bool:
        """Whether text begins a phrase, or is one."""
        return self._begins(text) or self._begins(_small(text))

    def _begins(self, text: str) -> bool:
        place = bisect_left(self._phrases, text)
        return place < len(self._phrases) and self._phrases[place].startswith(text)

    def find(self, text: str) -> str | None:
        """The respelling of a phrase. One that is written with its capitals goes first."""
        return self._of.get(text, self._of.get(_small(text)))


class ServerLexicon:
    """The lexicon of a server, and of its requests, whose own entries go first."""

    def __init__(self, lexicon: Lexicon = NO_LEXICON, phonemes: frozenset[str] = frozenset()) -> None:
        """phonemes: see ``Respellings``, which raises."""
        self._lexicon, self._phonemes = lexicon, phonemes
        Respellings(lexicon, phonemes)
        self._respellings = functools.lru_cache(maxsize=16)(self._made)

    @classmethod
    def from_file(cls, path: str, phonemes: frozenset[str] = frozenset()) -> ServerLexicon:
        """Empty: no lexicon. Raises ``ConfigError``."""
        try:
            return cls(read_lexicon(lexicon_text(path)) if path else NO_LEXICON, phonemes)
        except InvalidInputError as error:
            raise ConfigError(f"Parameter 'lexicon' is {path!r}: {error.sentence}") from None

    def with_own(self, requested: str | None) -> Respellings | None:
        """requested: of a request (``contract.lexicon``). None: nothing is respelled. Raises ``InvalidInputError``."""
        return self._respellings(requested or "")

    def _made(self, requested: str) -> Respellings | None:
        lexicon = {**self._lexicon, **read_lexicon(requested)}
        return Respellings(lexicon, self._phonemes) if lexicon else None


class Respeller:
    """One text. max_more_chars: characters by which respellings may make it longer, so that a short text cannot ask for hours of speech."""

    def __init__(self, respellings: Respellings, max_more_chars: int, emit: Emit) -> None:
        self._respellings = respellings
        self._max_more_chars = max_more_chars
        self._more_chars = 0
        self._emit = emit
        self._last = ""  # the character before those that are held
        self._held = ""
        self._counts: list[int] = []  # of its characters

    def feed(self, character: str, count: int) -> None:
        """Raises ``InvalidInputError`` for more than ``max_more_chars``."""
        if not character and self._held:
            self._counts[-1] += count
        elif not character:
            self._emit(character, count)
        else:
            self._held += character
            self._counts.append(count)
            while self._held and not self._is_open():
                self._decide()

    def finish(self, is_end: bool) -> None:
        while self._held:
            self._decide()
        self._last = ""

    def _is_open(self) -> bool:
        return self._begins_word() and self._respellings.may_go_on(self._held)

    def _begins_word(self) -> bool:
        return not _are_joined(self._last, self._held[0])

    def _decide(self) -> None:
        """Let go the longest phrase that the held text begins with, or its first character."""
        if self._begins_word():
            for length in range(len(self._held), 0, -1):
                respelling = self._respellings.find(self._held[:length])
                if respelling is not None and not _are_joined(self._held[length - 1], self._held[length : length + 1]):
                    self._respell(length, respelling)
                    return
        self._last = self._held[0]
        self._emit(self._last, self._counts[0])
        self._held, self._counts = self._held[1:], self._counts[1:]

    def _respell(self, length: int, respelling: str) -> None:
        self._more_chars += max(0, len(respelling) - length)
        if self._more_chars > self._max_more_chars:
            raise InvalidInputError(f"The lexicon makes the text longer by more than {self._max_more_chars} characters; shorten the text.")
        for character in respelling[:-1]:
            self._emit(character, 0)
        self._emit(respelling[-1], sum(self._counts[:length]))
        self._last = self._held[length - 1]
        self._held, self._counts = self._held[length:], self._counts[length:]


def _spoken(entry: str | Phonemes, phonemes: frozenset[str]) -> str:
    if isinstance(entry, Phonemes):
        return private_characters(phoneme_tokens(*entry, phonemes), phonemes)
    return _plain(entry)


def _plain(text: str) -> str:
    """As the stages before leave a text."""
    return " ".join("".join(map(cleaned, text)).split())


def _small(text: str) -> str:
    """As many characters."""
    return "".join(small if len(small := character.lower()) == 1 else character for character in text)


def _are_joined(first: str, second: str) -> bool:
    """Whether two neighbouring characters, either of which may be missing, belong to one word."""
    return _is_of_word(first) and (_is_of_word(second) or _is_mark(second)) and not (is_chinese(first) or is_chinese(second))


def _is_of_word(character: str) -> bool:
    return character.isalnum() or _is_mark(character)


def _is_mark(character: str) -> bool:
    return bool(character) and unicodedata.category(character).startswith("M")
