"""Readers of money, units, fractions and other quantities in Chinese. Pure."""

from __future__ import annotations

import re

from bistream.text.number_words import NUMBER, chinese_cardinal, chinese_number
from bistream.text.reading import Reader
from bistream.text.units import CURRENCIES, CURRENCY_CODES, unit_names
from bistream.text.written_forms import END, MINUS_OR_BEGIN, MONEY, UNIT, part, whole

IDEOGRAPH = r"[\u3400-\u9fff]"
_ZEROS = {"k": 3, "m": 6, "b": 9, "t": 12, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SCALE = r"(?:\s?(?P<scale>million|billion|trillion|thousand|[KkMBT]|[百千]?[万亿]|[百千])(?![A-Za-z]))?"
_PER = rf"(?:\s?/\s?(?P<per>[A-Za-z]+|{IDEOGRAPH}{{1,2}}|{NUMBER}\s?{UNIT}))?"
_NAMES = "|".join(sorted({names[3] for names in CURRENCIES.values()}, key=len, reverse=True))  # which shops write behind the sign, too


def counted(digits: str, is_followed: bool = True) -> str:
    """Before a unit, 两 and not 二."""
    return "两" if digits == "2" and is_followed else chinese_number(digits)


def _money(match: re.Match[str], context: str) -> str | None:
    sign, amount, scale, per = match["sign"], match["amount"].removesuffix(".00"), match["scale"], match["per"]
    name = CURRENCIES[sign][3]
    if scale and scale.lower() in _ZEROS:
        number = _scaled(amount, _ZEROS[scale.lower()])
    else:
        number = counted(amount) + (scale or "")
    minus = "负" if match[0].startswith("-") else ""
    return f"{_per(per)}{minus}{number}{name}"


def _per(unit: str | None) -> str:
    if not unit:
        return ""
    measured = re.fullmatch(rf"({NUMBER})\s?({UNIT})", unit)
    amount, unit = (chinese_number(measured[1]), measured[2]) if measured else ("", unit)
    names = unit_names(unit)
    return f"每{amount}{names[2] if names else unit}"


def _scaled(amount: str, zeros: int) -> str:
    """``1.2`` and 6 as 一百二十万."""
    whole, _, decimals = amount.replace(",", "").partition(".")
    return chinese_cardinal(whole + decimals.ljust(zeros, "0")) if len(decimals) <= zeros else chinese_number(amount)


def _priced(match: re.Match[str], context: str) -> str | None:
    return f"{_per(match[3])}{counted(match[1])}{match[2]}"


def _code_money(match: re.Match[str], context: str) -> str | None:
    return counted(match[1]) + CURRENCY_CODES[match[2]][2]


def _quantity(match: re.Match[str], context: str) -> str | None:
    amount, unit, per, power = match["amount"], match["unit"], match["per"], match["power"]
    names = unit_names(unit)
    if names is None:
        return None
    minus = "负" if match[0].startswith("-") else ""
    if unit in "%‰":
        return f"{'千' if unit == '‰' else '百'}分之{minus}{chinese_number(amount)}"
    if power:
        return f"{minus}{counted(amount)}{names[2]}每{_per(per)[1:]}{'平方' if power == '²' else '立方'}"
    return f"{_per(per)}{minus}{counted(amount)}{names[2]}"


def _fraction(match: re.Match[str], context: str) -> str | None:
    whole, above, below = match.groups()
    if match[0] == "24/7":
        return "七乘二十四"
    if int(above) >= int(below):
        return None if whole else f"{chinese_number(above)}比{chinese_number(below)}"
    prefix = f"{chinese_cardinal(whole)}又" if whole else ""
    return f"{prefix}{chinese_number(below)}分之{chinese_number(above)}"


def _pressure(match: re.Match[str], context: str) -> str | None:
    return f"{chinese_number(match[1])}比{chinese_number(match[2])}毫米汞柱"


def _scientific(match: re.Match[str], context: str) -> str | None:
    return f"{chinese_number(match[1])}乘以十的{'负' if match[2] == '-' else ''}{chinese_cardinal(match[3])}次方"


PRICES: tuple[Reader, ...] = (
    part(rf"(?<![A-Za-z0-9])-?(?P<sign>{MONEY})\s?(?P<amount>{NUMBER}){_SCALE}(?:{_NAMES})?{_PER}{END}", _money),
    whole(rf"({NUMBER})\s?({IDEOGRAPH}{{1,2}})\s?/\s?([A-Za-z]+|{IDEOGRAPH}{{1,2}})", _priced, end=""),
    whole(rf"({NUMBER})\s?({'|'.join(CURRENCY_CODES)})", _code_money),
)
AMOUNTS: tuple[Reader, ...] = (
    part(rf"({NUMBER})[eE]([+-]?)(\d+){END}", _scientific),
    whole(r"(\d+)/(\d+)\s?(?:mmHg|毫米汞柱)", _pressure),
    whole(r"(?:(\d+) )?(\d+)/(\d+)", _fraction),
    whole(r"(\d+):(\d+)", lambda match, context: f"{chinese_number(match[1])}比{chinese_number(match[2])}"),
    part(
        rf"{MINUS_OR_BEGIN}(?P<amount>{NUMBER})\s?(?P<unit>{UNIT})(?:/(?P<per>[A-Za-z]+|{NUMBER}\s?{UNIT})(?P<power>[²³])?)?{END}",
        _quantity,
    ),
)
