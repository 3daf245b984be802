"""How a session's text becomes the characters that the tokenizer sees, by the request's ``text_normalization``.

    caller's text --characters--> --Markdown, if asked for--> --tags--> --blanks--> --lexicon, if there is one-->
        --capitals--> --numbers read out, if asked for--> NFC

``raw`` is none of this. Every stage looks at one character after the other and holds only its undecided rest, so what comes out depends on
the text alone, not on the pieces in which it came. Each character carries how much of the caller's text it covers.
"""

from __future__ import annotations

import functools
from typing import NamedTuple, Protocol

from bistream.contract.checks import MARKDOWN, RAW, check_text_normalization
from bistream.text.blanks import BlankJoiner
from bistream.text.capitals import CapitalReader
from bistream.text.characters import RETRACT, CharacterCleaner, Emit
from bistream.text.front_end import between_tokens
from bistream.text.markdown import MarkdownReader
from bistream.text.normalization import MakeNormalizer, make_normalizer, read_transcript
from bistream.text.respelling import Respeller, Respellings
from bistream.text.tags import TagDropper


class PreparedCharacter(NamedTuple):
    """source_characters: of the text before it that are covered once this one is, beyond those of the characters before it."""

    character: str
    source_characters: int


class _Stage(Protocol):
    def feed(self, character: str, count: int) -> None: ...

    def finish(self, is_end: bool) -> None: ...


class TextPreparation:
    """One text, special tokens excepted."""

    def __init__(
        self,
        make_normalizer: MakeNormalizer | None = None,
        reads_markdown: bool = False,
        unknown_marks: frozenset[str] = frozenset(),
        respellings: Respellings | None = None,
        max_more_chars: int = 0,
    ) -> None:
        """unknown_marks: see ``ModelCard``. max_more_chars: see ``Respeller``."""
        self._out: list[PreparedCharacter] = []
        self._unknown_marks = unknown_marks
        self._stages: list[_Stage] = []  # the last one first
        if make_normalizer is not None:
            self._stages.append(make_normalizer(self._next))
        self._stages.append(CapitalReader(self._next))
        if respellings is not None:
            self._stages.append(Respeller(respellings, max_more_chars, self._next))
        self._stages.append(BlankJoiner(self._next))
        self._stages.append(TagDropper(self._next))
        if reads_markdown:
            self._stages.append(MarkdownReader(self._next))
        self._stages.append(CharacterCleaner(self._next))

    def push(self, characters: str) -> list[PreparedCharacter]:
        """What these characters decide. ``RETRACT`` takes back a blank before it; an empty one only covers characters."""
        feed = self._next
        for character in characters:
            feed(character, 1)
        return self._take()

    def take(self, character: str, count: int) -> list[PreparedCharacter]:
        """As ``push``, of one character that stands for so many of the caller's text."""
        self._next(character, count)
        return self._take()

    def finish(self, is_end: bool) -> list[PreparedCharacter]:
        """The rest. is_end: the text ends; else a special token interrupts it, and more may follow."""
        for stage in reversed(self._stages):
            stage.finish(is_end)
        return self._take()

    @property
    def _next(self) -> Emit:
        """Where the stage before the one that was added last gives its characters to."""
        return self._stages[-1].feed if self._stages else self._emit

    def _emit(self, character: str, count: int) -> None:
        """Unknown marks are dropped behind the last stage, because they mean something to all of them."""
        self._out.append(PreparedCharacter("" if character in self._unknown_marks else character, count))

    def _take(self) -> list[PreparedCharacter]:
        taken, self._out = self._out, []
        return taken


def chosen_normalization(requested: str | None, server: str) -> str:
    """requested: of a request, or None; ``+markdown``: the server's own, with Markdown. Raises ``InvalidInputError``."""
    if requested is not None:
        check_text_normalization(requested)
    if requested is None or (requested == MARKDOWN and server == RAW):
        return server
    return server.removesuffix(MARKDOWN) + MARKDOWN if requested == MARKDOWN else requested


def make_preparation(
    text_normalization: str,
    transcript: str,
    unknown_marks: frozenset[str] = frozenset(),
    respellings: Respellings | None = None,
    max_more_chars: int = 0,
) -> TextPreparation | None:
    """Of a session's text; None for raw. The rest: see ``TextPreparation``. Raises ``InvalidInputError`` where the package that reads
    numbers is missing."""
    if text_normalization == RAW:
        return None
    mode = text_normalization.removesuffix(MARKDOWN)
    return TextPreparation(make_normalizer(mode, transcript), mode != text_normalization, unknown_marks, respellings, max_more_chars)


@functools.lru_cache(maxsize=256)
def prepare_prompt(text: str, text_normalization: str, special_tokens: frozenset[str], is_spoken: bool) -> str:
    """A transcript (is_spoken: its numbers are read out as the text's are) or an instruction, whose special tokens stay.

    Neither is Markdown. Raises as ``make_preparation``.
    """
    if text_normalization == RAW:
        return text
    preparation = TextPreparation()
    clean = between_tokens(text, special_tokens, lambda part: _joined([*preparation.push(part), *preparation.finish(is_end=False)]))
    mode = text_normalization.removesuffix(MARKDOWN)
    return read_transcript(clean.rstrip(" "), mode, special_tokens) if is_spoken else clean.rstrip(" ")


def _joined(characters: list[PreparedCharacter]) -> str:
    """Without the blanks that are taken back."""
    text = ""
    for one in characters:
        text = text[:-1] if one.character == RETRACT else text + one.character
    return text
