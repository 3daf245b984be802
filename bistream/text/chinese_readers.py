"""Readers of written forms in Chinese (``reading.py`` says how they are used). The table is at the end. Pure.

Numbers with measure words are the library's, which knows 两 from 二; these are the forms that it reads wrongly.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from bistream.text.chinese_amounts import AMOUNTS, IDEOGRAPH, PRICES, counted
from bistream.text.number_words import NUMBER, chinese_cardinal, chinese_number, chinese_spelled, roman_value
from bistream.text.reading import Reader, ReadingRules, letters, read_expression
from bistream.text.written_forms import END, MINUS_OR_BEGIN, MONEY, TELEPHONES, UNIT, SignWords, named_marks, part, telephone_groups, whole

_SIGNS = SignWords(chinese_spelled, chinese_number, "点", "冒号", "杠", "斜杠", "")
_BARE = rf"{END}(?!{IDEOGRAPH})"
_HALVES = {"a": "上午", "p": "下午"}
_OPERATORS = {
    **{"+": "加", "-": "减", "×": "乘", "*": "乘", "x": "乘", "÷": "除以", "/": "除以", "=": "等于"},
    **{"<": "小于", ">": "大于", "≤": "小于等于", "≥": "大于等于", "≈": "约等于", "<=": "小于等于", ">=": "大于等于"},
}
_BEFORE_NUMBERS = {**_OPERATORS, "~": "约", "≈": "约", "±": "正负", "+": "加"}
_TWO_BEFORE = r"倍|点(?!\d)|点(?=\d{1,2}分)|小时|公斤|千克|公里|米|分钟|秒|天|周|年级|次|位|人|块|元|吨|升|斤|里|种|家|层|条|张|本|杯|瓶|岁"


def _telephone(match: re.Match[str], context: str) -> str | None:
    groups = telephone_groups(match[0])
    if groups is None:
        return None
    return ("加" if match[0].startswith("+") else "") + "，".join(chinese_spelled(group, "幺") for group in groups)


def _date(match: re.Match[str], context: str) -> str | None:
    year, month, day = match.group("year", "month", "day")
    if not 1 <= int(month) <= 12 or not 1 <= int(day) <= 31:
        return None
    spoken = f"{chinese_spelled(year)}年{chinese_cardinal(month)}月{chinese_cardinal(day)}日"
    hour = match.groupdict().get("hour")
    if hour is None:
        return spoken
    time = _clock(hour, match["minute"], match["second"])
    return None if time is None else spoken + {"Z": "UTC"}.get(match["zone"] or "", "") + time


def _clock(hour: str, minute: str, second: str | None) -> str | None:
    if int(hour) > 24 or int(minute) > 59 or (second is not None and int(second) > 59):
        return None
    spoken = f"{'两' if int(hour) == 2 else chinese_cardinal(hour)}点"
    if minute != "00" or second not in (None, "00"):
        spoken += f"{'零' if minute[0] == '0' and minute != '00' else ''}{chinese_cardinal(minute)}分"
    return spoken + (f"{chinese_cardinal(second)}秒" if second not in (None, "00") else "")


def _time(match: re.Match[str], context: str) -> str | None:
    hour, minute, second, half = match.groups()
    if half:
        spoken = _clock(hour, minute, second)
        return spoken and _HALVES[half.lower()] + spoken
    if context == "score" and second is None:
        return f"{chinese_number(hour)}比{chinese_number(minute)}"
    return _clock(hour, minute, second)


def _range(match: re.Match[str], context: str) -> str | None:
    first, last = match["first"], match["last"]
    if re.fullmatch(r"(?:19|20)\d\d", first) and re.fullmatch(r"(?:19|20)\d\d", last):
        return f"{chinese_spelled(first)}到{chinese_spelled(last)}"
    is_score = "~" not in match[0] and first.isdigit() and last.isdigit() and (context == "score" or int(first) > int(last))
    if last.endswith("%") and first.replace(".", "").isdigit():
        first += "%"
    return f"{read_chinese(first, '')}{'比' if is_score else '到'}{read_chinese(last, '')}"


def _arithmetic(match: re.Match[str], context: str) -> str | None:
    if re.search(r"[+=×÷*x<>≤≥≈]|\d /|/ \d", match[0]) is None:
        return None
    words = ""
    tokens = re.findall(rf"{NUMBER}|[<>]=|[A-Za-wyz]|\S", match[0])
    for index, token in enumerate(tokens):
        if token == "-" and (index == 0 or tokens[index - 1] in _OPERATORS):
            words += "负"
        else:
            words += _OPERATORS.get(token) or (token if token.isalpha() else chinese_number(token))
    return words


def _version(match: re.Match[str], context: str) -> str | None:
    return "点".join(map(chinese_number, match[0].split(".")))


def _roman(match: re.Match[str], context: str) -> str | None:
    value = roman_value(match[0]) if context == "ordinal" else None
    return None if value is None else chinese_cardinal(str(value))


def _identifier(match: re.Match[str], context: str) -> str | None:
    """Letters with digits: small and round numbers by value, others digit by digit. ``B2B`` is said in English."""
    if re.fullmatch(r"[BCDGOP]2[BCGOP]|E2E", match[0]):
        return f"{match[0][0]} to {match[0][2]}"
    words = ""
    for token in re.findall(r"\d+(?:\.\d+)*|[A-Za-z]+|\+", match[0]):
        words += _code(token) if token[0].isdigit() else {"+": "加"}.get(token) or letters(token)
    return words


def _code(digits: str) -> str:
    if "." in digits:
        return "点".join(map(chinese_number, digits.split("."))) if digits.count(".") > 1 else chinese_number(digits)
    is_value = digits[0] != "0" and (len(digits) < 3 or (len(digits) < 5 and digits.endswith("00")))
    return chinese_number(digits) if is_value else chinese_spelled(digits)


def _plain_number(match: re.Match[str], context: str) -> str | None:
    minus, digits = ("负", match[0][1:]) if match[0].startswith("-") else ("", match[0])
    if context == "model":
        return chinese_number(digits)
    if re.fullmatch(r"(?:19|20)\d[1-9]", digits):
        return minus + chinese_spelled(digits)
    if context == "id" and digits.isdigit() and len(digits) > 2 and not minus:
        return chinese_spelled(digits, "幺" if len(digits) in (3, 5) or digits.startswith("1") and len(digits) == 11 else "一")
    return minus + chinese_number(digits)


_SIMPLE = rf"(?:(?:{MONEY})?{NUMBER}(?:\s?{UNIT}|[KMB](?![A-Za-z]))?|\d{{1,2}}:\d\d)"
_TERM = rf"(?:{NUMBER}|(?<![A-Za-z])[A-Za-wyz](?![A-Za-z]))"
_ISO_TIME = r"(?:[T ](?P<hour>\d\d):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:\.\d+)?)?(?P<zone>Z)?)?"
_HOTLINE = r"(?<!\d)(10086|10010|12306|12315|985|211|996)(?![\d.,:/元万亿块米人个-])"

READERS: tuple[Reader, ...] = (
    whole(rf"(?P<year>\d{{4}})([-/.])(?P<month>\d{{1,2}})\2(?P<day>\d{{1,2}}){_ISO_TIME}", _date),
    whole(r"((?:19|20)\d\d)-(0[1-9]|1[0-2])", lambda match, context: f"{chinese_spelled(match[1])}年{chinese_cardinal(match[2])}月"),
    whole(r"(?P<month>\d{1,2})/(?P<day>\d{1,2})/(?P<year>\d{4})", _date),
    *_SIGNS.readers(),
    *(part(pattern, _telephone) for pattern in (rf"(?<![\dA-Za-z])\+(86)(1\d{{10}}){END}", *TELEPHONES)),
    whole(r"1[3-9]\d[ -]?\d{4}[ -]?\d{4}|0\d{2,3}[ -]\d{7,8}|0\d{2,3}[ -]\d{4}[ -]\d{4}|[48]00-?\d{3}-?\d{4}", _telephone),
    whole(r"\d{3}[-.]\d{3}[-.]\d{4}", _telephone),
    whole(r"\d{4}(?:[ -]\d{4}){3}|\d{17}[\dXx]", lambda match, context: _SIGNS.hexadecimal(re.sub("[ -]", "", match[0]))),
    part(r"(?<=[点时分月日号元岁天年%])\s?[-~]\s?(?=\d)", lambda match, context: "到"),
    whole(rf"(?P<first>{_SIMPLE})\s?[-~]\s?(?P<last>{_SIMPLE})(?!\s?[=+*×])", _range, end=_BARE),
    whole(r"(?P<first>(?:19|20)\d\d)\s?[-~]\s?(?P<last>(?:19|20)\d\d)(?=年)", _range),
    whole(r"(\d0)-(\d0)(?=年代)", lambda match, context: f"{chinese_number(match[1])}到{chinese_number(match[2])}", end=""),
    whole(rf"({NUMBER})\s?[-~]\s?(?={NUMBER}{IDEOGRAPH})", lambda match, context: f"{counted(match[1], not context)}到", end=""),
    whole(r"(\d{1,2}):(\d\d)(?::(\d\d))?(?: ?([AaPp])\.?[Mm]\b\.?)?", _time),
    whole(r"(\d{1,2}) ?([AaPp])\.?[Mm]", lambda match, context: f"{_HALVES[match[2].lower()]}{counted(match[1])}点"),
    *PRICES,
    whole(r"\d+(?:\.\d+){2,}", _version, end=r"(?![.]\d)"),
    whole(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?", lambda match, context: chinese_number(match[0])),
    whole(r"(\d+|[A-Za-z])\^(-?\d+)", lambda match, context: f"{read_chinese(match[1], '')}的{read_chinese(match[2], '')}次方"),
    whole(rf"-?{_TERM}(?:\s?(?:[<>]=|[-+×÷*/=x<>≤≥≈])\s?-?{_TERM})+", _arithmetic),
    *AMOUNTS,
    whole(r"0x[0-9A-Fa-f]+", lambda match, context: f"零x{_SIGNS.hexadecimal(match[0][2:])}"),
    part(r"(?i:\bno)\.\s?(?=\d)", lambda match, context: "第"),
    part(r"#(\d+)(?!\d)", lambda match, context: f"{chinese_number(match[1])}号"),
    part(r"(?<![A-Za-z0-9])(?:[<>]=|[<>≤≥~≈±+])\s?(?=[-$€£¥]?\.?\d)", lambda match, context: _BEFORE_NUMBERS[match[0].strip()]),
    part(r"(?<=[\d万亿千百])\+(?!\d)", lambda match, context: "加"),
    part(_HOTLINE, lambda match, context: chinese_spelled(match[1], "幺")),
    whole(r"[IVXL]+", _roman, end="(?![A-Za-z0-9])"),
    part(r"(?<!\d)([1-9])0后", lambda match, context: f"{chinese_spelled(match[1])}零后"),
    part(r"(?<!\d)((?:19|20)\d\d)(?=[款届级版])", lambda match, context: chinese_spelled(match[1])),
    part(r"(?<!\d)\d{4}(?=室|房)", lambda match, context: _code(match[0])),
    part(rf"(?<![\d.:/-])2(?={_TWO_BEFORE})", lambda match, context: None if context == "ordinal" else "两"),
    part(r"(?<!\d)2(?=个)", lambda match, context: "二" if context == "ordinal" else None),
    whole(r"(?:[A-Za-z]+-?\d+(?:\.\d+)*|\d+-?[A-Za-z])(?:-?[A-Za-z0-9]+)*\+?", _identifier),
    part(rf"{MINUS_OR_BEGIN}{NUMBER}{_BARE}", _plain_number),
)
RULES = ReadingRules(
    readers=READERS,
    marks=named_marks(
        "/ 斜杠 | : 冒号 | - 杠 | _ 下划线 | @ 艾特 | # 井号 | + 加 | = 等于 | ^ 的幂 | ~ 约 | % 百分号 | & 和"
        "| $ 美元 | € 欧元 | £ 英镑"
        "| ¥ 元 | < 小于 | > 大于 | ≤ 小于等于 | ≥ 大于等于 | ± 正负 | × 乘 | ÷ 除以 | ° 度 | ² 平方 | ³ 立方"
        "| √ 根号 | ∞ 无穷大 | § 第 | № 第"
        "| ≈ 约 | ℃ 摄氏度 | ℉ 华氏度 | ‰ 千分号"
    ),
    number=lambda digits: chinese_number(digits) if len(digits) < 9 or "." in digits else chinese_spelled(digits),
    gap="",
    left_over=re.compile(rf"\d|[-/_+=~^<>@#%&$€£¥≤≥±×÷°²³|\\]|{IDEOGRAPH}[.:](?={IDEOGRAPH})"),
    changed_words=frozenset(),
)


def read_chinese(text: str, context: str, library: Callable[[str], str] = lambda part: "") -> str:
    """library: of what no reader knows; without it, that is spelled out."""
    return read_expression(text, RULES, context, library)
