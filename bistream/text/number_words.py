"""Numbers as words, English and Chinese: the parts from which ``english_readers`` and ``chinese_readers`` build readings. Pure.

Digits are ASCII; a number may have groups (``1,234``) and decimals (``.5``, ``12.50``). Nothing is dropped: a number is read by its value
only where that says each of its digits, else digit by digit.
"""

from __future__ import annotations

import re

from bistream.text.front_end import number_to_words

NUMBER = r"(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|(?<![.\d])\.\d+)"
_LONGEST_VALUE = 7  # digits without groups; longer ones are identifiers, unless they end in zeros
_IRREGULAR = {"one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth", "twelve": "twelfth"}
_CHINESE_DIGITS = "零一二三四五六七八九"
_ROMAN = {"I": 1, "V": 5, "X": 10, "L": 50}


def spelled(digits: str) -> str:
    """``010`` as "zero one zero"."""
    return " ".join(map(number_to_words, digits))


def cardinal(digits: str) -> str:
    """``1234`` as "one thousand two hundred and thirty four"."""
    return number_to_words(digits).replace(",", "").replace("-", " ")


def is_identifier(digits: str) -> bool:
    """Whether a run of digits is no quantity: it begins with a zero, or is long and not round."""
    return (len(digits) > 1 and digits[0] == "0") or (len(digits) > _LONGEST_VALUE and not digits.endswith("000")) or len(digits) > 15


def number(text: str) -> str:
    """Any ``NUMBER``, with decimals one by one."""
    whole, point, decimals = text.partition(".")
    if "," not in whole and is_identifier(whole):
        words = spelled(whole)
    else:
        words = cardinal(whole.replace(",", "")) if whole else ""
    return f"{words} point {spelled(decimals)}".strip() if point else words


def ordinal(digits: str) -> str:
    """``21`` as "twenty first"."""
    head, _, last = cardinal(digits).rpartition(" ")
    last = _IRREGULAR.get(last) or (f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th")
    return f"{head} {last}".strip()


def year(digits: str) -> str:
    """Four digits as a year: "nineteen oh five", "two thousand and five", "eighteen hundred"."""
    century, rest = digits[:2], digits[2:]
    if century in ("10", "20") and rest[0] == "0":
        return cardinal(digits)
    if rest == "00":
        return f"{cardinal(century)} hundred"
    return f"{cardinal(century)} {'oh ' if rest[0] == '0' else ''}{cardinal(rest)}"


def decade(digits: str) -> str:
    """``1990`` as "nineteen nineties", ``90`` as "nineties", ``1800`` as "eighteen hundreds"."""
    words = year(digits) if len(digits) == 4 else cardinal(digits)
    return f"{words[:-1]}ies" if words.endswith("y") else f"{words}s"


def roman_value(numeral: str) -> int | None:
    """Of a numeral below 90, in capitals; None: it is none."""
    if re.fullmatch(r"(?:XL|L?X{0,3})(?:IX|IV|V?I{0,3})", numeral) is None or not numeral:
        return None
    values = [_ROMAN[letter] for letter in numeral]
    return sum(-value if value < after else value for value, after in zip(values, [*values[1:], 0], strict=True))


def chinese_spelled(digits: str, one: str = "一") -> str:
    """one: 幺 in telephone numbers."""
    return "".join(_CHINESE_DIGITS[int(digit)] for digit in digits).replace("一", one)


def chinese_cardinal(digits: str) -> str:
    """``10203`` as 一万零二百零三, with 两 before 百, 千, 万 and 亿."""
    value = int(digits)
    if value < 10_000:
        return _below_ten_thousand(value).replace("二百", "两百").replace("二千", "两千").removeprefix("零") or "零"
    size, scale = (10**8, "亿") if value >= 10**8 else (10**4, "万")
    head, rest = divmod(value, size)
    words = "两" if head == 2 else chinese_cardinal(str(head))
    if not rest:
        return words + scale
    return words + scale + ("零" if rest < size // 10 else "") + _after_scale(rest)


def _after_scale(rest: int) -> str:
    words = chinese_cardinal(str(rest))
    return f"一{words}" if 10 <= rest < 20 else words


def _below_ten_thousand(value: int) -> str:
    if 10 <= value < 20:
        return "十" + (_CHINESE_DIGITS[value - 10] if value > 10 else "")
    words = ""
    for scale, name in ((1000, "千"), (100, "百"), (10, "十"), (1, "")):
        digit = value // scale % 10
        if digit:
            words += _CHINESE_DIGITS[digit] + name
        elif words and not words.endswith("零"):
            words += "零"
    return words.rstrip("零")


def chinese_number(text: str) -> str:
    """As ``number``."""
    whole, point, decimals = text.partition(".")
    if "," not in whole and is_identifier(whole):
        words = chinese_spelled(whole)
    else:
        words = chinese_cardinal(whole.replace(",", "")) if whole else "零"
    return f"{words}点{chinese_spelled(decimals)}" if point else words
