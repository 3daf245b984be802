"""Readers of written forms in English (``reading.py`` says how they are used). The table is at the end. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable

from bistream.text.english_amounts import AMOUNTS
from bistream.text.english_times import DATES, TIMES
from bistream.text.number_words import NUMBER, cardinal, number, ordinal, roman_value, spelled, year
from bistream.text.reading import Reader, ReadingRules, letters, read_expression, spelled_marks
from bistream.text.span_words import ABBREVIATIONS, JOINERS, MONTHS
from bistream.text.written_forms import END, MINUS_OR_BEGIN, MONEY, TELEPHONES, UNIT, SignWords, named_marks, part, telephone_groups, whole

_SIGNS = SignWords(spelled, number, "dot", "colon", "dash", "slash", " ")
_FIXED_RANGES = {"50-50": "fifty fifty", "24-7": "twenty four seven"}
_OPERATORS = {
    **{"+": "plus", "-": "minus", "×": "times", "*": "times", "÷": "divided by", "/": "divided by", "=": "equals", "≈": "is about"},
    **{"<": "is less than", ">": "is greater than", "≤": "is at most", "≥": "is at least", "<=": "is at most", ">=": "is at least"},
}
_BEFORE_NUMBERS = {
    **{"<": "less than", ">": "greater than", "≤": "less than or equal to", "≥": "greater than or equal to", "~": "about", "≈": "about"},
    **{"<=": "less than or equal to", ">=": "greater than or equal to", "±": "plus or minus", "+": "plus", "#": "number", "=": "equals"},
}
_SHORT_FORMS = {
    **{"p": "page", "pp": "pages", "no": "number", "nos": "numbers", "vol": "volume", "fig": "figure", "ch": "chapter", "sec": "section"},
    **{"ext": "extension", "approx": "approximately", "ca": "circa", "x": "extension"},
}


def _telephone(match: re.Match[str], context: str) -> str | None:
    groups = telephone_groups(match[0])
    if groups is None:
        return None
    words = [spelled(group) for group in groups]
    if len(groups) == 4 and groups[0] == "1" and groups[1] in ("800", "900"):
        words[1] = f"{spelled(groups[1][0])} hundred"
    return ("plus " if match[0].startswith("+") else "") + ", ".join(words)


def _range(match: re.Match[str], context: str) -> str | None:
    first, last = match["first"].strip(), match["last"].strip()
    if match[0] in _FIXED_RANGES:
        return _FIXED_RANGES[match[0]]
    if context == "id" and first.isdigit() and last.isdigit():
        return f"{_code(first)} {_code(last)}"
    sign, last_sign = re.match(MONEY, first), re.match(MONEY, last)
    if sign is not None and (last_sign is None or last[-1].isalpha()):
        first, last = first[sign.end() :], last if last_sign else sign[0] + last
    if _is_year(first) and _is_year(last):
        return f"{year(first)} to {year(last)}"
    return f"{read_english(first, '')} to {read_english(last, '')}"


def _is_year(text: str) -> bool:
    return re.fullmatch(r"1[0-9]\d\d|20\d\d", text) is not None


def _arithmetic(match: re.Match[str], context: str) -> str | None:
    if re.search(r"[+=×÷*]|\d /|/ \d|[<>≤≥≈]", match[0]) is None:
        return None
    tokens = re.findall(rf"{NUMBER}(?:\^-?\d+)?|[A-Za-z](?:\^-?\d+)?|[²³]|[<>]=|\S", match[0])
    words: list[str] = []
    for index, token in enumerate(tokens):
        is_factor = token == "x" and 0 < index < len(tokens) - 1 and tokens[index - 1][0].isdigit() and tokens[index + 1][0].isdigit()
        if token == "-" and (index == 0 or tokens[index - 1] in _OPERATORS):
            words.append("minus")
        elif token.isalpha():
            words.append("times" if is_factor else token)
        else:
            words.append(_OPERATORS.get(token) or {"²": "squared", "³": "cubed"}.get(token) or read_english(token, ""))
    return " ".join(words)


def _by(match: re.Match[str], context: str) -> str | None:
    sides = [number(side) if side.isdigit() else read_english(side, "") for side in match.groups()]
    return " by ".join(sides)


def _version(match: re.Match[str], context: str) -> str | None:
    prefix, numbers, suffix = match.groups()
    if prefix is None and "." in numbers and numbers.count(".") == 1 and context != "version":
        return None
    words = " point ".join(number(part) for part in numbers.split("."))
    rest = f" {_identifier_words(suffix)}" if suffix else ""
    return ("version " if prefix and context != "version" else "") + words + rest


def _identifier(match: re.Match[str], context: str) -> str | None:
    return _identifier_words(match[0])


def _identifier_words(text: str) -> str:
    words = []
    for token in re.findall(r"\d+|[A-Za-z]+|[.+]", text):
        words.append(_code(token) if token.isdigit() else {"+": "plus", ".": "point"}.get(token) or letters(token))
    return " ".join(words)


def _code(digits: str) -> str:
    """Digits of a name: small and round ones by value."""
    is_value = digits[0] != "0" and (len(digits) < 3 or (len(digits) < 5 and digits.endswith("00")))
    return cardinal(digits) if is_value else spelled(digits)


def _plain_number(match: re.Match[str], context: str) -> str | None:
    minus, text = ("minus ", match[0][1:]) if match[0].startswith("-") else ("", match[0])
    if context in ("id", "version") and text.isdigit() and not minus:
        return _code(text)
    if not minus and _is_year(text) and (context == "year" or text[:2] in ("19", "20")):
        return year(text)
    return minus + number(text)


def _roman(match: re.Match[str], context: str) -> str | None:
    value = roman_value(match[0])
    if value is None or context not in ("section", "ruler"):
        return None
    return f"the {ordinal(str(value))}" if context == "ruler" else cardinal(str(value))


def _power(match: re.Match[str], context: str) -> str | None:
    base, exponent = match.groups()
    spoken = number(base) if base[0].isdigit() else base
    if exponent in ("2", "3"):
        return f"{spoken} {'squared' if exponent == '2' else 'cubed'}"
    return f"{spoken} to the power of {read_english(exponent, '')}"


def _street(match: re.Match[str], context: str) -> str | None:
    return {"St": "Saint" if context != "name" else "Street", "Ave": "Avenue", "Blvd": "Boulevard", "Rd": "Road"}[match[1]]


_SIMPLE = (
    rf"(?:\d{{1,2}}:\d\d(?:\s?[AaPp]\.?[Mm]\.?)?|\d{{1,2}}\s?[AaPp]\.?[Mm]\.?"
    rf"|(?:{MONEY})?{NUMBER}(?:\s?(?:{UNIT}(?:/[A-Za-z]+)?|thousand|million|billion|trillion)(?![A-Za-z])|[KkMB]|st|nd|rd|th)?)"
)
_TERM = rf"(?:{NUMBER}(?:\^-?\d+|[²³])?[a-z]?|(?<![A-Za-z])[A-Za-z])(?:\^-?\d+|[²³])?(?![A-Za-z])"
_SIDE = rf"(\d{{3,}}|{NUMBER}\s?{UNIT})"

READERS: tuple[Reader, ...] = (
    *DATES,
    *_SIGNS.readers(),
    whole(r"\d{3}-\d\d-\d{4}|\d{4}(?:[ -]\d{4}){3}", _telephone),
    *(part(pattern, _telephone) for pattern in TELEPHONES),
    whole(r"(?:1[-. ])?\d{3}[-. ]\d{3}[-. ]\d{4}|\d{3}-\d{4}|\d{5}-\d{4}|0\d{2,4}[ -]\d{3,8}(?:[ -]\d{2,8})?|1[3-9]\d{9}", _telephone),
    whole(r"\d+(?:-\d+){2,}", lambda match, context: ", ".join(map(spelled, match[0].split("-")))),
    whole(rf"(?P<first>{_SIMPLE})\s?[-~]\s?(?P<last>{_SIMPLE})(?!\s?[=+*×])", _range),
    *TIMES,
    part(r"\b((?i:noon|midnight))\s?-\s?(?=\d)", lambda match, context: f"{match[1]} to "),
    part(r"(?<=\w)\s-\s(?=[\d.])", lambda match, context: " minus "),
    part(rf"\b((?i:mid|pre|post))-(\d+(?:s|/\d+)?){END}", lambda match, context: f"{match[1]} {read_english(match[2], 'year')}"),
    whole(r"([Vv]\.?)?(\d+(?:\.\d+)+)(?:-?([A-Za-z]+[.-]?\d*))?", _version),
    whole(r"([Vv]\.?)(\d+(?:\.\d+)*)()", _version),
    whole(r"(\d+|[A-Za-z])\^(-?\d+)", _power),
    whole(rf"{_SIDE}\s?[x×*]\s?{_SIDE}(?!\s?=)", _by),
    whole(rf"-?{_TERM}(?:\s?(?:[<>]=|[-+×÷*/=x<>≤≥≈])\s?-?{_TERM})+", _arithmetic),
    whole(r"(\d+)\s?x\s?(\d+)(?!\s?=)", _by),
    *AMOUNTS,
    whole(r"0x[0-9A-Fa-f]+", lambda match, context: f"zero x {_SIGNS.hexadecimal(match[0][2:])}"),
    part(
        r"(?<![A-Za-z0-9])(?i:(pp?|nos?|vol|fig|ch|sec|ext|approx|ca)\.(?=\s?\d)|(x)(?=\d{2,6}(?!\d)))",
        lambda match, context: _SHORT_FORMS[(match[1] or match[2]).lower()],
    ),
    part(r"\b(?i:no)\b\.?(?!\s?\d)", lambda match, context: match[0]),  # an answer
    part(r"\bWW(I{1,2})\b", lambda match, context: f"World War {'one' if match[1] == 'I' else 'two'}"),
    whole(r"[IVXL]+", _roman),
    part(r"\b(St|Ave|Blvd|Rd)\.", _street),
    part(r"(?<=[A-Za-z0-9²³])\s?=\s?(?=[A-Za-z0-9-])", lambda match, context: " equals "),
    whole(r"([A-G])#", lambda match, context: f"{match[1]} sharp"),
    part(r"#(?=[A-Za-z])", lambda match, context: "hashtag"),
    part(r"(?<![A-Za-z0-9])(?:[<>]=|[<>≤≥~≈±+#=])\s?(?=[-$€£¥]?\.?\d)", lambda match, context: _BEFORE_NUMBERS[match[0].strip()]),
    whole(r"(?:[A-Za-z]+[-.]?\d+(?:\.\d+)*|\d+-?[A-Za-z])(?:-?[A-Za-z0-9]+(?:\.\d+)*)*\+?", _identifier),
    part(rf"{MINUS_OR_BEGIN}{NUMBER}{END}", _plain_number),
)
RULES = ReadingRules(
    readers=READERS,
    marks=named_marks(
        "/ slash | : colon | _ underscore | @ at | # hash | + plus | = equals | ^ to the power of | ~ about | % percent | & and"
        "| $ dollars | € euros | £ pounds | ¥ yen | < less than | > greater than | ≤ at most | ≥ at least | ± plus or minus | × times"
        "| ÷ divided by | ° degrees | ² squared | ³ cubed | ≈ about | § section | № number | √ the square root of | ∞ infinity | ¢ cents"
        "| ℃ degrees Celsius | ℉ degrees Fahrenheit | ‰ per mille"
    )
    | {"-": " "},
    number=lambda digits: number(digits) if len(digits) < 5 or "." in digits else spelled(digits),
    gap=" ",
    pause=",",
    left_over=re.compile(r"\d|[A-Za-z][.:;!?][A-Za-z]|[-/_+=~^<>@#%&$€£¥≤≥±×÷°²³|\\](?![A-Za-z])|[/_+=~^<>@#|\\≤≥±×÷°–](?=\w)"),
    changed_words=frozenset(ABBREVIATIONS | JOINERS | {month.lower() for month in MONTHS}),
)


def read_english(text: str, context: str, library: Callable[[str], str] = lambda part: "") -> str:
    """library: of what no reader knows; without it, that is spelled out."""
    return read_expression(text, RULES, context, library)


def read_address(text: str) -> str:
    """A URL, a mail address, a path or a name of a file."""
    return spelled_marks(text, RULES, _code)
