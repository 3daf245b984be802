"""Tags of SSML and HTML are dropped, and entities are the characters that they stand for: a stage of the text preparation.

Text in the form of a tag is held, at most ``MAX_TAG_CHARS``; ``3 < 5``, ``a<b`` and ``if (a<b)`` are released by the first character that
cannot stand in a tag. A name alone in brackets (``List<String>``, ``Dear <name>``) is a tag only where SSML or HTML know it.
"""

from __future__ import annotations

import html
import re

from bistream.text.characters import GAP, Emit, cleaned

MAX_TAG_CHARS = 512
_BEGINNINGS = ("<", "&")
_NAME = r"[A-Za-z][\w:.-]*"
_VALUE = r"""(?:"[^"<]*"|'[^'<]*'|[^\s"'<>=/]+)"""
_ATTRIBUTES = rf"(?:\s+{_NAME}\s*=\s*{_VALUE})*"
_TAG = re.compile(
    rf"<(?P<end>/)?(?P<name>{_NAME})(?P<attributes>{_ATTRIBUTES})\s*(?P<empty>/)?>|<!--.*?-->|<[!?][A-Za-z][^<>]*>|<#[\d.]+#>", re.DOTALL
)
_OPEN_ATTRIBUTE = rf"""\s+{_NAME}\s*(?:=\s*(?:"[^"<]*|'[^'<]*|[^\s"'<>=/]*)?)?"""
_BEGINNING = re.compile(
    rf"</?(?:{_NAME}{_ATTRIBUTES}(?:\s*/?|{_OPEN_ATTRIBUTE})?)?|<!(?:-(?:-.*)?)?|<[!?](?:[A-Za-z][^<>]*)?|<#[\d.]*#?", re.DOTALL
)
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,11});")
_ENTITY_BEGINNING = re.compile(r"&(?:#(?:\d{0,7}|[xX][0-9a-fA-F]{0,6})|[A-Za-z][A-Za-z0-9]{0,11})?")

# What words they stand in goes on after them.
_INLINE = frozenset(
    "a abbr b big code del em emphasis font i ins kbd lang mark phoneme prosody q samp small span strong sub sup tt u var w".split()
)
_LINES = frozenset("br dd div dt h1 h2 h3 h4 h5 h6 hr li ol p paragraph s sentence table tr ul".split())
_OTHERS = frozenset(
    "audio article aside bdo blockquote body break center cite desc details dl figcaption figure footer head header html img lexicon "
    "lookup main media meta metadata nav par pre say-as section seq speak spell summary tbody td th thead title token voice".split()
)
_KNOWN = _INLINE | _LINES | _OTHERS


class TagDropper:
    """One text."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._held = ""  # what may be the beginning of a tag or an entity
        self._counts: list[int] = []  # of its characters

    def feed(self, character: str, count: int) -> None:
        if not self._held and character not in _BEGINNINGS:
            self._emit(character, count)
            return
        if not character:
            self._counts[-1] += count
            return
        self._held += character
        self._counts.append(count)
        while self._held and not self._is_open():
            self._decide()

    def finish(self, is_end: bool) -> None:
        while self._held:
            self._release()

    def _is_open(self) -> bool:
        if self._held[-1] == ">" and _TAG.fullmatch(self._held):
            return False
        beginning = _BEGINNING if self._held[0] == "<" else _ENTITY_BEGINNING
        return len(self._held) < MAX_TAG_CHARS and beginning.fullmatch(self._held) is not None

    def _decide(self) -> None:
        if (tag := _TAG.fullmatch(self._held)) is not None and _is_tag(tag):
            self._replace(_in_its_place(tag["name"]))
        elif _ENTITY.fullmatch(self._held) and (meant := html.unescape(self._held)) != self._held:
            self._replace("".join(map(cleaned, meant)))
        else:
            self._release()

    def _replace(self, characters: str) -> None:
        count, self._held, self._counts = sum(self._counts), "", []
        for character in characters[:-1]:
            self._emit(character, 0)
        self._emit(characters[-1:], count)

    def _release(self) -> None:
        """The first held character, and those after it that cannot begin anything."""
        length = next((index for index, one in enumerate(self._held) if index and one in _BEGINNINGS), len(self._held))
        released, counts = self._held[:length], self._counts[:length]
        self._held, self._counts = self._held[length:], self._counts[length:]
        for character, count in zip(released, counts, strict=True):
            self._emit(character, count)


def _is_tag(tag: re.Match[str]) -> bool:
    name = tag["name"]
    if name is None:  # a comment, a declaration, a pause of some vendors
        return True
    return bool(tag["end"] or tag["empty"] or tag["attributes"]) or ":" in name or name.lower() in _KNOWN


def _in_its_place(name: str | None) -> str:
    if name is not None and name.lower() in _LINES:
        return "\n"
    return "" if name is not None and name.lower() in _INLINE else GAP
