"""Readers of dates and times of day in English. Pure."""

from __future__ import annotations

import re

from bistream.text.number_words import cardinal, number, ordinal, year
from bistream.text.reading import Reader
from bistream.text.written_forms import whole

_MONTHS = "January February March April May June July August September October November December".split()
_MONTH = r"(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)(?:[a-z]*\.?)"
_MONTH_NUMBER = {name[:3]: index for index, name in enumerate(_MONTHS, start=1)}
_HALF_OF_DAY = r"(?: ?([AaPp])\.?[Mm]\b\.?)"


def date_words(year_digits: str | None, month: int, day: str | None) -> str | None:
    if not 1 <= month <= 12 or (day is not None and not 1 <= int(day) <= 31):
        return None
    if year_digits is not None and len(year_digits) == 2:
        year_digits = f"20{year_digits}"
    name = _MONTHS[month - 1]
    spoken_day = "" if day is None else f" {ordinal(day)}"
    spoken_year = "" if year_digits is None else f"{',' if day else ''} {year(year_digits)}"
    return name + spoken_day + spoken_year


def _iso_date(match: re.Match[str], context: str) -> str | None:
    date = date_words(match[1], int(match[2]), match[3])
    if date is None or match[4] is None:
        return date
    time = _clock(match[4], match[5], match[6])
    zone = (
        ""
        if match[7] is None
        else " UTC"
        if match[7] == "Z"
        else f" UTC {'plus' if match[7][0] == '+' else 'minus'} {number(match[7][1:3].lstrip('0') or '0')}"
    )
    zone += f" {number(match[7][-2:])}" if match[7] and match[7] != "Z" and match[7][-2:] != "00" else ""
    return None if time is None else f"{date}, {time}{zone}"


def _numeric_date(match: re.Match[str], context: str) -> str | None:
    first, mark, second, last = match.groups()
    is_day_first = mark == "." or int(first) > 12
    month, day = (second, first) if is_day_first else (first, second)
    return date_words(last, int(month), day)


def _month_day(match: re.Match[str], context: str) -> str | None:
    month, day, last_day, year_digits = match.groups()
    spoken = date_words(None, _MONTH_NUMBER[month], day)
    if spoken is None:
        return None
    until = f" to {ordinal(last_day)}" if last_day else ""
    return spoken + until + (f", {year(year_digits)}" if year_digits else "")


def _day_month(match: re.Match[str], context: str) -> str | None:
    day, month, year_digits = match.groups()
    if not 1 <= int(day) <= 31:
        return None
    article = "" if context == "the" else "the "
    name = _MONTHS[_MONTH_NUMBER[month] - 1]
    return f"{article}{ordinal(day)} of {name}" + (f", {year(year_digits)}" if year_digits else "")


def _month_year(match: re.Match[str], context: str) -> str | None:
    return f"{_MONTHS[_MONTH_NUMBER[match[1]] - 1]} {year(match[2])}"


def _clock(hour: str, minute: str, second: str | None) -> str | None:
    if int(hour) > 24 or int(minute) > 59 or (second is not None and int(second) > 59):
        return None
    spoken = cardinal(hour)
    if minute != "00":
        spoken += f" {'oh ' if minute[0] == '0' else ''}{cardinal(minute)}"
    elif second in (None, "00"):
        spoken += " o'clock"
    if second is not None and second != "00":
        plural = "" if int(second) == 1 else "s"
        spoken += f"{'' if minute != '00' else ' hours'} and {cardinal(second)} second{plural}"
    return spoken


def _time(match: re.Match[str], context: str) -> str | None:
    hour, minute, second, half = match.groups()
    if context == "score" and not half and second is None:
        return f"{number(hour)} to {number(minute)}"
    if second is not None and not half:
        parts = [_counted(part, name) for part, name in ((hour, "hour"), (minute, "minute"), (second, "second"))]
        return f"{parts[0]} {parts[1]} and {parts[2]}" if int(minute) < 60 and float(second) < 60 else None
    spoken = _clock(hour, minute, second)
    if spoken is None or not half:
        return spoken
    return f"{spoken.removesuffix(chr(32) + 'o' + chr(39) + 'clock')} {half.upper()}M"


def _counted(digits: str, name: str) -> str:
    return f"{number(digits.lstrip('0') or '0')} {name}{'' if digits.lstrip('0') == '1' else 's'}"


def _hour(match: re.Match[str], context: str) -> str | None:
    return f"{cardinal(match[1])} {match[2].upper()}M" if int(match[1]) <= 24 else None


DATES: tuple[Reader, ...] = (
    whole(r"(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:\.\d+)?)?(Z|[+-]\d\d:?\d\d)?)?", _iso_date),
    whole(r"(\d{4})/(\d{1,2})/(\d{1,2})", lambda match, context: date_words(match[1], int(match[2]), match[3])),
    whole(r"((?:19|20)\d\d)-(0[1-9]|1[0-2])", lambda match, context: date_words(match[1], int(match[2]), None)),
    whole(r"(\d{1,2})([/.-])(\d{1,2})\2(\d{4}|\d\d)", _numeric_date),
    whole(rf"{_MONTH} (\d{{1,2}})(?:st|nd|rd|th)?(?: ?- ?(\d{{1,2}})(?:st|nd|rd|th)?)?(?:,? (\d{{4}}))?", _month_day),
    whole(rf"(\d{{1,2}})(?:st|nd|rd|th)? {_MONTH}(?:,? (\d{{4}}))?", _day_month),
    whole(rf"{_MONTH} (\d{{4}})", _month_year),
)
TIMES: tuple[Reader, ...] = (
    whole(rf"(\d{{1,2}}):(\d\d)(?::(\d\d(?:\.\d+)?))?{_HALF_OF_DAY}?", _time),
    whole(rf"(\d{{1,2}}){_HALF_OF_DAY}", _hour),
)
