"""Written forms that both languages share: the bounds of a token, telephones, and addresses of networks, read sign by sign. Pure.

A reader takes a form only with its whole token: the bounds refuse a letter or a digit beside it, and a mark between it and more of them.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass

from bistream.text.reading import Read, Reader
from bistream.text.units import CURRENCIES, UNIT_PATTERN

BEGIN, END = r"(?<![A-Za-z0-9])(?<![A-Za-z0-9][.:/-])(?<!\d,)", r"(?![A-Za-z0-9])(?![.,:/~-]\d)"
MINUS_OR_BEGIN = rf"(?:(?<![A-Za-z0-9)])-|{BEGIN})"
MONEY = "|".join(re.escape(sign) for sign in sorted(CURRENCIES, key=len, reverse=True))
UNIT = rf"(?i:{UNIT_PATTERN})"
TELEPHONES = (  # of any country: with an area code in brackets, with the code of a country
    r"(?<![\dA-Za-z])\+?(?:\d{1,3}[ .-]?)?[(（]\+?\d{1,5}[)）][ .-]?\d{2,8}(?:[ .-]?\d{2,5}){0,3}" + END,
    r"(?<![\dA-Za-z])\+\d{1,3}(?:[ .-]?\d{1,5}){1,5}" + END,
)


def whole(pattern: str, read: Read, end: str = END) -> Reader:
    """Of a whole token."""
    return Reader(re.compile(f"{BEGIN}(?:{pattern}){end}"), read)


def part(pattern: str, read: Read) -> Reader:
    """Of a form that has bounds of its own."""
    return Reader(re.compile(pattern), read)


def telephone_groups(text: str) -> list[str] | None:
    """The groups of digits; None: too few or too many for a telephone, or two round quantities, as in ``500-1000``."""
    groups = re.findall(r"\d+", text)
    is_range = re.fullmatch(r"[1-9]\d*0-\d+0", text) is not None
    return None if is_range or not 7 <= sum(map(len, groups)) <= 16 else groups


@dataclass(frozen=True)
class SignWords:
    """How a language reads what is not a word. spelled: digits one by one. number: by value."""

    spelled: Callable[[str], str]
    number: Callable[[str], str]
    dot: str
    colon: str
    dash: str
    slash: str
    gap: str

    def hexadecimal(self, text: str) -> str:
        names = {":": self.colon, "-": self.dash}
        return self.gap.join(names.get(one) or (self.spelled(one) if one.isdigit() else one.upper()) for one in text)

    def ipv6(self, text: str) -> str | None:
        try:
            ipaddress.ip_address(text)
        except ValueError:
            return None
        return self.hexadecimal(text)

    def ipv4(self, octets: list[str], mark: str | None, rest: str) -> str | None:
        """mark, rest: ``:`` and a port, or ``/`` and the length of a prefix."""
        if any(int(octet) > 255 for octet in octets):
            return None
        words = f"{self.gap}{self.dot}{self.gap}".join(map(self.spelled, octets))
        suffix = {"/": (self.slash, self.number), ":": (self.colon, self.spelled)}.get(mark or "")
        return words if suffix is None else self.gap.join((words, suffix[0], suffix[1](rest)))

    def readers(self) -> tuple[Reader, ...]:
        return (
            whole(r"(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}", lambda match, context: self.hexadecimal(match[0])),
            whole(r"[0-9A-Fa-f]{0,4}:[0-9A-Fa-f:]+", lambda match, context: self.ipv6(match[0])),
            whole(r"(\d{1,3}(?:\.\d{1,3}){3})(?:([:/])(\d+))?", lambda match, context: self.ipv4(match[1].split("."), match[2], match[3])),
        )


def named_marks(table: str) -> dict[str, str]:
    """Of ``/ slash | : colon``."""
    entries = (entry.strip() for entry in table.split("|"))
    return {entry[0]: entry[2:] for entry in entries} | {"|": " "}
