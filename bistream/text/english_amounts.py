"""Readers of money, units, fractions and other quantities in English. Pure."""

from __future__ import annotations

import re

from bistream.text.english_times import date_words
from bistream.text.number_words import NUMBER, cardinal, decade, number, ordinal
from bistream.text.reading import Reader
from bistream.text.span_words import PER_WORDS
from bistream.text.units import CURRENCIES, CURRENCY_CODES, unit_names
from bistream.text.written_forms import END, MINUS_OR_BEGIN, MONEY, UNIT, part, whole

_SCALES = {"k": "thousand", "m": "million", "mn": "million", "b": "billion", "bn": "billion", "t": "trillion"}
_SCALE = r"(?:\s?(?P<scale>million|billion|trillion|thousand|bn|mn|[KkMmBT])(?![A-Za-z]))?"
_PER = rf"(?:\s?/\s?(?P<per>[A-Za-z]+|{NUMBER}\s?{UNIT}))?"
_AMOUNT = rf"(?P<amount>\d+,\d\d(?=\s?€)|{NUMBER})"
_SHORT_TIMES = {"mo": "month", "yr": "year", "wk": "week"}  # behind a slash alone
_FIXED = {"9/11": "nine eleven", "24/7": "twenty four seven", "50/50": "fifty fifty", "20/20": "twenty twenty"}


def _money(match: re.Match[str], context: str) -> str | None:
    sign, amount, scale, per = match["sign"] or match["after"], match["amount"], match["scale"], match["per"]
    one, many, cents, _ = CURRENCIES[sign]
    minus = "minus " if "-" in match[0][: match.start("amount") - match.start()] else ""
    if "," in amount and re.fullmatch(r"\d+,\d\d", amount):
        amount = amount.replace(",", ".")
    whole, point, decimals = amount.partition(".")
    if scale:
        spoken = f"{number(amount)} {_SCALES.get(scale.lower(), scale)} {many}"
    elif not point or len(decimals) != 2 or not cents:
        spoken = f"{number(amount)} {one if amount == '1' else many}"
    else:
        spoken = _with_cents(whole, decimals, one, many, cents)
    return minus + spoken + (f" per {_singular(per)}" if per else "")


def _with_cents(whole: str, decimals: str, one: str, many: str, cents: str) -> str:
    units = f"{number(whole or '0')} {one if whole == '1' else many}"
    small = f"{cardinal(decimals)} {cents if int(decimals) > 1 or cents == 'pence' else cents.removesuffix('s')}"
    if int(decimals) == 0:
        return units
    return small if not whole.strip("0") else f"{units} and {small}"


def _code_money(match: re.Match[str], context: str) -> str | None:
    one, many, _ = CURRENCY_CODES[match[2]]
    return f"{number(match[1])} {one if match[1] == '1' else many}"


def _singular(unit: str) -> str:
    """Of a unit after a slash: ``kg``, ``month``, ``500g``."""
    known = unit_names(unit)
    measured = re.fullmatch(rf"({NUMBER})\s?({UNIT})", unit)
    if measured is not None:
        names = unit_names(measured[2])
        return f"{number(measured[1])} {names[1] if names else measured[2]}"
    return known[0] if known else _SHORT_TIMES.get(unit, unit)


def _quantity(match: re.Match[str], context: str) -> str | None:
    amount, unit, per, power = match["amount"], match["unit"], match["per"], match["power"]
    known = unit_names(unit)
    if known is None:
        return None
    minus = "minus " if match[0].startswith("-") else ""
    spoken = f"{minus}{number(amount)} {known[0] if amount == '1' else known[1]}"
    if per:
        spoken += f" per {_singular(per)}" + {"2": " squared", "²": " squared", "3": " cubed", "³": " cubed"}.get((power or "")[-1:], "")
    return spoken


def _decade(match: re.Match[str], context: str) -> str | None:
    """``30s`` are seconds but after "the", "his", "in" and the like."""
    return decade(match[1]) if len(match[1]) == 4 or context in ("the", "year") else None


def _trailing_unit(match: re.Match[str], context: str) -> str | None:
    """A unit after a number that another reader has taken."""
    names = unit_names(match["unit"])
    if names is None:
        return None
    return f" {names[1]}" + (f" per {_singular(match['per'])}" if match["per"] else "")


def _trailing_per(match: re.Match[str], context: str) -> str | None:
    known = unit_names(match[1])
    if known is None and match[1] not in PER_WORDS:
        return None
    return f" per {known[0] if known else match[1]}"


def _fraction(match: re.Match[str], context: str) -> str | None:
    whole, above, below, unit = match.groups()
    if context == "day" and not whole and not unit and int(above) <= 12:
        return date_words(None, int(above), below)
    if match[0] in _FIXED:
        return _FIXED[match[0]]
    names = unit_names(unit) if unit else None
    if unit and names is None:
        return None
    if context in ("count", "section") and not whole and not unit:
        return f"{number(above)} of {number(below)}"
    is_part = 0 < int(above) < int(below) <= 100 and above[0] != "0" and below[0] != "0"
    if not is_part:
        spoken = f"{number(above)} {'out of' if above == below else 'over'} {number(below)}"
        return f"{number(whole)} {spoken}" if whole else spoken + (f" {names[1]}" if names else "")
    of_unit = f" {names[1 if whole else 0]}" if names else ""
    part = {"2": "half", "4": "quarter"}.get(below, ordinal(below)) + ("" if above == "1" else "s")
    if whole is None:
        return f"{cardinal(above)} {part}{of_unit}"
    return f"{number(whole)} and {'a' if above == '1' else cardinal(above)} {part}{of_unit}"


def _scientific(match: re.Match[str], context: str) -> str | None:
    sign = "minus " if match[2] == "-" else ""
    return f"{number(match[1])} times ten to the power of {sign}{cardinal(match[3])}"


AMOUNTS: tuple[Reader, ...] = (
    whole(r"\d{1,2}(?:,\d\d)+,\d{3}", lambda match, context: number(match[0])),  # 1,00,000 of India
    whole(r"\d{1,3}(?:'\d{3})+|[1-9]\d{0,2}(?: \d{3}){2,}", lambda match, context: cardinal(re.sub("[ ']", "", match[0]))),
    whole(r"(\d{1,3}(?:\.\d{3})+),(\d\d)", lambda match, context: number(f"{match[1].replace('.', '')}.{match[2]}")),
    whole(r"(\d{1,2})'(\d{1,2})", lambda match, context: f"{cardinal(match[1])} foot {cardinal(match[2])}"),
    part(rf"(?:(?<![A-Za-z0-9)])-)?(?<![A-Za-z])(?P<sign>{MONEY})(?P<after>)\s?-?{_AMOUNT}{_SCALE}{_PER}{END}", _money),
    whole(rf"(?P<sign>){_AMOUNT}(?P<scale>)\s?(?P<after>[€£¥$]){_PER}", _money),
    whole(rf"({NUMBER})\s?({'|'.join(CURRENCY_CODES)})", _code_money),
    whole(rf"({NUMBER})[eE]([+-]?)(\d+)", _scientific),
    whole(r"(\d+\.\d+)/(\d+)", lambda match, context: f"{number(match[1])} out of {number(match[2])}"),
    whole(rf"(?:(\d+) )?(\d+)/(\d+)(?:\s?({UNIT}))?", _fraction),
    whole(r"(\d+):(\d+)", lambda match, context: f"{number(match[1])} to {number(match[2])}"),
    part(rf"(?<!\d)(1[1-9]\d0|20\d0|[2-9]0)'?s{END}", _decade),
    part(
        rf"{MINUS_OR_BEGIN}(?P<amount>{NUMBER})\s?(?P<unit>{UNIT})(?:/(?P<per>[A-Za-z]+|{NUMBER}\s?{UNIT})(?P<power>[²³]|\^[23])?)?{END}",
        _quantity,
    ),
    whole(r"(\d+)(?:st|nd|rd|th)", lambda match, context: ordinal(match[1])),
    part(rf"(?<=\d)\s?(?P<unit>{UNIT})(?:/(?P<per>[A-Za-z]+))?{END}", _trailing_unit),
    part(rf"(?<=[\dA-Za-z])\s?/\s?([A-Za-z]+){END}", _trailing_per),
    part(r"(?<=[\dA-Za-z)])[²³]", lambda match, context: "squared" if match[0] == "²" else "cubed"),
    part(r"(?<=\d),(?=\d)", lambda match, context: ", "),
    whole(rf"({NUMBER})x", lambda match, context: f"{number(match[1])} times"),
    whole(rf"({NUMBER})([kM])|(\d{{3,}})(K)", lambda m, context: f"{number(m[1] or m[3])} {_SCALES[(m[2] or m[4]).lower()]}"),
)
