"""SSML of a session, in pieces: what of it is text, and where the speech pauses.

Python's expat reads it, one character after the other, so that what is known at any time depends on the text alone. Elements: ``speak``,
``p``, ``s``, ``break``, ``sub``, ``phoneme``, ``say-as``, ``prosody`` with a rate; any other is an error, and so is what is not
well-formed. A text without ``speak`` is read as if it stood in one. There can be no document type, so there are no entities but those of
XML and characters by number.

Special tokens mean nothing here: neither in the text, nor in an attribute or an entity. Those of a ``phoneme`` are looked up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple
from xml.parsers import expat

from bistream.contract.checks import MAX_SPEED, MIN_SPEED
from bistream.errors import InvalidInputError
from bistream.text.phonemes import phoneme_tokens

MAX_BREAK_MS = 10_000
MAX_SILENCE_MS = 120_000  # of a text: silence keeps a session's place, and costs its caller nothing
_BREAKS_MS = {"none": 0, "x-weak": 250, "weak": 500, "medium": 750, "strong": 1000, "x-strong": 1250}  # as Azure has them
_TIME = re.compile(r"\+?(\d+(?:\.\d*)?|\.\d+)(ms|s)")
_RATES = {"x-slow": 0.5, "slow": 0.8, "medium": 1.0, "default": 1.0, "fast": 1.25, "x-fast": 1.5}
_RATE = re.compile(r"(?P<sign>[+-]?)(?P<number>\d+(?:\.\d*)?|\.\d+)(?P<percent>%?)")
_SPELLED = frozenset(("characters", "spell-out", "verbatim", "digits"))
_READ = frozenset("address cardinal currency date duration fraction measure name number telephone time unit".split())
_ROOT = "ssml"  # stands around the text
_ENTITY = re.compile(r"&[#\w.:-]*")
_DECLARATION = re.compile(r"<\?xml\s[^<>]*\?>")  # which a text may begin with; its encoding says nothing, these are characters
_TAG_BEGINNING = re.compile(r"<(?:[\w:/!?]|\Z)")


class MarkedText(NamedTuple):
    """text: a character, or a special token for a phoneme (is_token); a break has none. covered: characters of the SSML up to its end,
    beyond those of the items before.

    silence_ms: of a break, 0 where only the rate changes; None: this is text. rate_percent: of the speech behind a break.
    """

    text: str
    covered: int
    silence_ms: int | None = None
    rate_percent: int = 100
    is_token: bool = False


class _Element(NamedTuple):
    name: str
    is_silent: bool = False  # its text is not spoken
    is_spelled: bool = False
    rate_percent: int = 100


class MarkupReader:
    """One text. After an error it is of no use."""

    def __init__(self, phonemes: frozenset[str] = frozenset(), has_rate: bool = True) -> None:
        """phonemes: special tokens that the model has for them. has_rate: whether the speech may change its speed."""
        self._phonemes = phonemes
        self._has_rate = has_rate
        self._parser = expat.ParserCreate()
        self._parser.StartElementHandler = self._begin
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._say
        self._open: list[_Element] = []
        self._out: list[MarkedText] = []
        self._waiting = ""  # the beginning of a tag or an entity
        self._came = 0  # characters
        self._covered = 0  # characters since the last item
        self._silence_ms = 0  # of all breaks
        self._parse(f"<{_ROOT}>", is_end=False)

    def push(self, characters: str, is_end: bool) -> list[MarkedText]:
        """What these characters decide. Raises ``InvalidInputError``."""
        for character in characters:
            self._came += 1
            self._covered += 1
            self._waiting += character
            if not _is_open(self._waiting):
                self._pass_waiting()
        if is_end:
            self._pass_waiting()
            self._parse(f"</{_ROOT}>", is_end=True)
        taken, self._out = self._out, []
        return taken

    def _pass_waiting(self) -> None:
        waiting, self._waiting = self._waiting, ""
        if waiting == "\ufeff" and self._came == 1:
            self._came = 0  # a byte-order mark stands before the text
        elif self._came > len(waiting) or _DECLARATION.fullmatch(waiting) is None:
            self._parse(waiting, is_end=False)

    def _parse(self, characters: str, is_end: bool) -> None:
        try:
            self._parser.Parse(characters.encode("utf-8"), is_end)
        except expat.ExpatError as error:
            reason = expat.ErrorString(error.code)
            raise InvalidInputError(f"The SSML is not well-formed up to character {self._came} ({reason}); correct it.") from None

    # Called by the parser

    def _begin(self, name: str, attributes: Mapping[str, str]) -> None:
        outer = self._open[-1] if self._open else _Element("")
        element = outer._replace(name=name)
        if name == "break":
            self._pause(_break_ms(attributes))
        elif name == "prosody":
            element = element._replace(rate_percent=self._rate_percent(outer.rate_percent, attributes))
            self._change_rate(outer, element)
        elif name in ("p", "s"):
            self._say("\n\n")
        elif name == "sub":
            self._say(_needed(name, "alias", attributes))
            element = element._replace(is_silent=True)
        elif name == "phoneme":
            self._pronounce(element, _needed(name, "alphabet", attributes), _needed(name, "ph", attributes))
            element = element._replace(is_silent=True)
        elif name == "say-as":
            element = element._replace(is_spelled=_is_spelled(_needed(name, "interpret-as", attributes)))
        elif name != ("speak" if self._open else _ROOT):
            raise InvalidInputError(f"SSML's {name[:40]} is not known here; use speak, p, s, break, sub, phoneme, say-as and prosody.")
        self._open.append(element)

    def _end(self, name: str) -> None:
        ended = self._open.pop()
        if name in ("p", "s"):
            self._say("\n\n")
        elif name == "prosody":
            self._change_rate(ended, self._open[-1])

    def _say(self, text: str) -> None:
        """Blanks and line ends of the file are blanks, as in XML; two line ends, of p and s, end a sentence."""
        element = self._open[-1]
        if element.is_silent:
            return
        if text != "\n\n":
            text = re.sub(r"\s", " ", text)
        if element.is_spelled:
            text = spelled(text)
        for index, character in enumerate(text, start=1):
            self._out.append(MarkedText(character, self._take_covered() if index == len(text) else 0))

    def _pronounce(self, element: _Element, alphabet: str, written: str) -> None:
        if not element.is_silent:
            tokens = phoneme_tokens(alphabet, written, self._phonemes)
            self._out += (MarkedText(token, self._take_covered(), is_token=True) for token in tokens)

    def _rate_percent(self, outer_percent: int, attributes: Mapping[str, str]) -> int:
        """Within an element of another rate."""
        if set(attributes) != {"rate"} or not self._has_rate:
            sentence = "prosody has the rate alone" if self._has_rate else "the rate cannot be changed here"
            raise InvalidInputError(f"Of SSML's {sentence}; leave the rest out.")
        percent = round(outer_percent * _factor(attributes["rate"]))
        if not 100 * MIN_SPEED <= percent <= 100 * MAX_SPEED:
            raise InvalidInputError(f"The rate of SSML's prosody is {percent} %; set it between {MIN_SPEED:.0%} and {MAX_SPEED:.0%}.")
        return percent

    def _change_rate(self, before: _Element, after: _Element) -> None:
        if before.rate_percent != after.rate_percent and not after.is_silent:
            self._out.append(MarkedText("", self._take_covered(), 0, after.rate_percent))

    def _pause(self, silence_ms: int) -> None:
        element = self._open[-1]
        if silence_ms and not element.is_silent:
            self._silence_ms += silence_ms
            if self._silence_ms > MAX_SILENCE_MS:
                raise InvalidInputError(f"The SSML breaks are longer than {MAX_SILENCE_MS // 1000} s together; shorten them.")
            self._out.append(MarkedText("", self._take_covered(), silence_ms, element.rate_percent))

    def _take_covered(self) -> int:
        covered, self._covered = self._covered, 0
        return covered


def spelled(text: str) -> str:
    """Letter by letter."""
    return "".join(f" {character.upper()} " if character.isalnum() else " " for character in text)


def blanked(marked: list[MarkedText]) -> str:
    """As many characters as they cover, where those of the markup say nothing (NUL)."""
    return "".join(f"{one.text[-1:]:\0>{one.covered}}" if one.covered else "" for one in marked)


def plain(marked: list[MarkedText]) -> str:
    """What they say; a phoneme is a digit, which is of no script."""
    return "".join("0" if one.is_token else one.text for one in marked)


def _is_open(waiting: str) -> bool:
    """Whether the parser can do nothing with it yet: it is handed over whole, or as soon as it is wrong."""
    if waiting[0] == "<":
        return waiting[-1] != ">" and _TAG_BEGINNING.match(waiting) is not None
    return waiting[0] == "&" and _ENTITY.fullmatch(waiting) is not None


def _needed(element: str, attribute: str, attributes: Mapping[str, str]) -> str:
    value = attributes.get(attribute, "")
    if not value.strip():
        raise InvalidInputError(f"The SSML element {element} has no {attribute}; add one.")
    return value


def _break_ms(attributes: Mapping[str, str]) -> int:
    time = attributes.get("time")
    if time is None:
        strength = attributes.get("strength", "medium")
        if strength not in _BREAKS_MS:
            raise InvalidInputError(f"The strength of an SSML break is {strength[:20]!r}; use one of {', '.join(_BREAKS_MS)}.")
        return _BREAKS_MS[strength]
    found = _TIME.fullmatch(time.strip())
    silence_ms = round(float(found[1]) * (1000 if found[2] == "s" else 1)) if found is not None else None
    if silence_ms is None or silence_ms > MAX_BREAK_MS:
        raise InvalidInputError(f"The time of an SSML break is {time[:20]!r}; use 300ms, 1.5s or so, up to {MAX_BREAK_MS // 1000}s.")
    return silence_ms


def _factor(rate: str) -> float:
    """A word, a factor, a percentage, or a change in percent."""
    if (factor := _RATES.get(rate.strip())) is not None:
        return factor
    found = _RATE.fullmatch(rate.strip())
    if found is None or (found["sign"] and not found["percent"]):
        raise InvalidInputError(f"The rate of SSML's prosody is {rate[:20]!r}; use 1.2, 120%, +20% or one of {', '.join(_RATES)}.")
    number = float(found["number"]) / (100 if found["percent"] else 1)
    return number if not found["sign"] else 1 + float(f"{found['sign']}{number}")


def _is_spelled(interpret_as: str) -> bool:
    if interpret_as not in _SPELLED | _READ:
        raise InvalidInputError(f"say-as of SSML has interpret-as {interpret_as[:20]!r}; use {', '.join(sorted(_SPELLED | _READ))}.")
    return interpret_as in _SPELLED
