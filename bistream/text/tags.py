"""Tags of SSML and HTML are dropped, and entities are the characters that they stand for: a stage of the text preparation.

Text in the form of a tag is held, at most ``MAX_TAG_CHARS``; ``3 < 5``, ``a<b`` and ``if (a<b)`` are released by the first character that
cannot stand in a tag. A name alone in brackets (``List<String>``, ``Dear <name>``) is a tag only where SSML or HTML know it.
"""

from __future__ import annotations

import html
import re

from bistream.text.characters import GAP, cleaned
from bistream.text.forms import FormReader

MAX_TAG_CHARS = 512
_NAME = r"[A-Za-z][\w:.-]*"
_VALUE = r"""(?:"[^"<]*"|'[^'<]*'|[^\s"'<>=/]+)"""
_ATTRIBUTES = rf"(?:\s+{_NAME}\s*=\s*{_VALUE})*"
TAG = re.compile(
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


class TagDropper(FormReader):
    """One text."""

    BEGINNINGS = ("<", "&")

    def _is_open(self, held: str) -> bool:
        return is_open_tag(held) if held[0] == "<" else len(held) < MAX_TAG_CHARS and _ENTITY_BEGINNING.fullmatch(held) is not None

    def _meaning(self, held: str) -> str | None:
        if (tag := TAG.fullmatch(held)) is not None and _is_tag(tag):
            return _in_its_place(tag["name"])
        if _ENTITY.fullmatch(held) and (meant := html.unescape(held)) != held:
            return "".join(map(cleaned, meant))
        return None


def is_open_tag(held: str) -> bool:
    """held: from its ``<`` on. Whether it may become a tag, and is none yet."""
    if held[-1] == ">" and TAG.fullmatch(held):
        return False
    return len(held) < MAX_TAG_CHARS and _BEGINNING.fullmatch(held) is not None


def _is_tag(tag: re.Match[str]) -> bool:
    name = tag["name"]
    if name is None:  # a comment, a declaration, a pause of some vendors
        return True
    return bool(tag["end"] or tag["empty"] or tag["attributes"]) or ":" in name or name.lower() in _KNOWN


def _in_its_place(name: str | None) -> str:
    if name is not None and name.lower() in _LINES:
        return "\n"
    return "" if name is not None and name.lower() in _INLINE else GAP
