"""Text normalisation of a session: numbers, dates, units, currencies, addresses and abbreviations as the words that are spoken.

Text in, in any pieces; normalised characters out, as soon as nothing that follows can change them. ``spans.py`` decides what is an
expression, ``english_readers.py`` and ``chinese_readers.py`` how it is read, with the library ``wetext`` (WeTextProcessing's grammars,
which CosyVoice's own front end uses too) for what they do not know. Each expression is normalised by itself, whether the text streams or
is whole, so both give the same by construction. Optional: the package is imported by the first session that asks for it (0.3 s and 45 MB
once). The library's own ``StreamNormalizer`` was measured and is not used: up to 275 ms for a character, it holds back whole English
sentences, and raises on blanks (docs/log/text.md).
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from os.path import commonprefix

from bistream.errors import ConfigError, InvalidInputError
from bistream.text.characters import Emit
from bistream.text.chinese_readers import read_chinese
from bistream.text.english_readers import read_address, read_english
from bistream.text.front_end import between_tokens, contains_chinese, replace_corner_mark
from bistream.text.reading_context import Language, kind_of
from bistream.text.span_words import is_electronic
from bistream.text.spans import Span, SpanCutter

logger = logging.getLogger(__name__)

ReadOut = Callable[[str, Language, str], str]  # an expression, its language, the kind of the words before it or "": as it is spoken
MakeNormalizer = Callable[[Emit], "TextNormalizer"]


class TextNormalizer:
    """One text: a stage of the text preparation. read_out: of ``load_read_out``, or a test's."""

    def __init__(self, mode: str, first_language: Language, read_out: ReadOut, emit: Emit) -> None:
        """mode: auto | zh | en. first_language: what to take an expression for where the text has shown no script yet."""
        self._cutter = SpanCutter(None if mode == "auto" else "zh" if mode == "zh" else "en", first_language)
        self._read_out = read_out
        self._emit = emit
        self._counts: deque[int] = deque()  # of the characters that the cutter holds
        self._covered = 0  # characters that were dropped since

    def feed(self, character: str, count: int) -> None:
        if not character:
            self._covered += count
            return
        self._counts.append(count + self._covered)
        self._covered = 0
        self._give(self._cutter.push(character))

    def finish(self, is_end: bool) -> None:
        self._give(self._cutter.finish())
        if self._covered:
            self._emit("", self._covered)
            self._covered = 0

    def _give(self, spans: Sequence[Span]) -> None:
        for span in spans:
            text, language = span.text, span.language
            spoken = text if language is None else self._read_out(text, language, kind_of(span.before, language))
            for character, covered in aligned(text, spoken if spoken.strip() else text):
                self._emit(character, sum(self._counts.popleft() for _ in range(covered)))


def aligned(source: str, spoken: str) -> list[tuple[str, int]]:
    """Every character of ``spoken``, and how many of ``source`` are covered with it. What both begin and end with is covered character by
    character, all between with the last character between."""
    if source == spoken:
        return [(character, 1) for character in spoken]
    shorter = min(len(source), len(spoken)) - 1  # one character is left between them, to carry what is in neither
    head = min(len(commonprefix([source, spoken])), shorter)
    tail = min(len(commonprefix([source[::-1], spoken[::-1]])), shorter - head)
    covered = [1] * head + [0] * (len(spoken) - head - tail) + [1] * tail
    covered[len(spoken) - tail - 1] += len(source) - head - tail
    return list(zip(spoken, covered, strict=True))


def normalize_text(text: str, mode: str, read_out: ReadOut) -> str:
    """A whole text without special tokens, exactly as a session speaks it that gets it in pieces."""
    out: list[str] = []
    normalizer = TextNormalizer(mode, first_language(text), read_out, lambda character, count: out.append(character))
    for character in text:
        normalizer.feed(character, 1)
    normalizer.finish(is_end=True)
    return "".join(out)


def make_normalizer(mode: str, transcript: str) -> MakeNormalizer | None:
    """Of a session's text; None for mode off. Raises ``InvalidInputError`` where the package is missing."""
    return None if mode == "off" else functools.partial(TextNormalizer, mode, first_language(transcript), load_read_out())


@functools.lru_cache(maxsize=256)
def read_transcript(transcript: str, mode: str, as_written: frozenset[str] = frozenset()) -> str:
    """The transcript of a recording, read out as the session's text is. as_written: tokens that stay. Raises as ``make_normalizer``."""
    if mode == "off":
        return transcript
    read_out = load_read_out()
    return between_tokens(transcript, as_written, lambda part: normalize_text(part, mode, read_out))


def first_language(text: str) -> Language:
    """Of a session with this transcript, until its own text shows a script."""
    return "zh" if contains_chinese(text) else "en"


def is_installed() -> bool:
    return importlib.util.find_spec("wetext") is not None


READ_OUT_CACHE = 4096  # expressions of at most a line each; one takes some milliseconds with the interpreter's lock held


def load_for_server() -> None:
    """For a server that normalises by default. Raises ``ConfigError`` where the package is missing."""
    if not is_installed():
        raise ConfigError(
            "Parameter 'text_normalization' needs the Python package wetext; install requirements/server.txt, or set it to off."
        )
    load_read_out()


@functools.cache
def load_read_out() -> ReadOut:
    """Load the grammars, once per process. Raises ``InvalidInputError`` where the package is missing."""
    if not is_installed():
        raise InvalidInputError(
            "text_normalization needs the Python package wetext, which this server lacks; install requirements/server.txt, "
            "or send text_normalization off."
        )
    from wetext import Normalizer  # noqa: PLC0415 - tens of megabytes, only for sessions that ask for it

    by_language = {"zh": Normalizer(lang="zh", operator="tn"), "en": Normalizer(lang="en", operator="tn")}
    lock = threading.Lock()  # the library does not say that it is safe to use from several threads

    def grammar(language: Language, part: str) -> str:
        try:
            with lock:
                spoken = by_language[language].normalize(part)
            return replace_corner_mark(spoken) if language == "zh" else spoken
        except Exception as error:  # its grammars have no path for some texts, and it says so by an assertion
            logger.debug("a part of %d characters was not normalised: %r", len(part), error)
            return ""

    @functools.lru_cache(maxsize=READ_OUT_CACHE)
    def read_out(expression: str, language: Language, kind: str) -> str:
        if is_electronic(expression):
            return read_address(expression)
        read = read_chinese if language == "zh" else read_english
        return read(expression, kind, functools.partial(grammar, language))

    return read_out
