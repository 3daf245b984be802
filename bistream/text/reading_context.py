"""What the words before an expression say about its kind. They are not held back for it: the cutter remembers the end of the text. Pure."""

from __future__ import annotations

import re
from typing import Literal

from bistream.text.number_words import roman_value

Language = Literal["zh", "en"]
REMEMBERED_CHARS = 24
_MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
_ENGLISH = (
    (
        "section",
        r"\b(?i:chapter|part|section|volume|book|act|scene|phase|article|appendix|type|stage|title|level|grade|class|mark|war|bowl|figure|table)\s$",
    ),
    (
        "ruler",
        r"\b(?:Henry|Louis|Elizabeth|George|Charles|William|Edward|Richard|James|Paul|Pius|Benedict|Leo|Napoleon|Philip|Frederick|Wilhelm)\s$",
    ),
    (
        "version",
        r"(?i:\b(?:version|release|ver|python|ubuntu|ios|ipados|macos|android|java|node|node\.js|php|ruby|rust|go|cuda|linux|kernel|debian|"
        r"chrome|firefox|windows|django|pytorch|gcc|clang|swift|kotlin|unity|kubernetes|postgres|postgresql|mysql|redis|docker))\.?\s$",
    ),
    (
        "id",
        r"(?i:\b(?:room|suite|flight|gate|bus|route|highway|interstate|apartment|apt|channel|extension|code|pin|zip|id|ticket|account|serial|card|"
        r"phone|tel|call|dial|text|fax|locker|boeing|airbus)[.:]?\s(?:is\s)?#?$)",
    ),
    ("id", r"\b(?!(?:US|UK|EU|AM|PM|OR|IN|AT|OF|TO|BY|IS|USD|EUR|GBP|CNY|JPY|RMB|BC|AD)\b)[A-Z]{2,4}\s$"),
    ("score", r"(?i:\b(?:won|wins?|lost|loses?|beat|scored?|score of|score was|score is|tied?|drew|draw|leads?|led|trails?)\s$)"),
    ("year", rf"(?i:\b(?:in|since|year|until|till|from|circa|during|early|mid|late|spring|summer|autumn|fall|winter|{_MONTHS})[\s-]$)"),
    ("day", r"(?i:\b(?:on|by|due|dated)\s$)"),
    ("the", r"(?i:\b(?:the|his|her|its|their|my|our|your)\s)'?$|(?<!\w)'$"),
    ("name", r"\b(?!In|On|At|The|And|Of|To|From|Near|By|For)[A-Z][a-z]+\s$"),
)
_CHINESE = (
    ("ordinal", r"第$"),
    (
        "id",
        r"(?:电话|手机|号码|打|拨|致电|热线|分机|转|邮编|邮政编码|尾号|编号|工号|学号|单号|账号|卡号|QQ号?|验证码|密码|口令|房间|房号|航班|车次|身份证号?|车牌号?)[是为：:]?\s?$",
    ),
    ("id", r"[A-Z]·$|\b[A-Z]{2,4}\s$"),
    ("model", r"[歼轰运直强轰舟]$|东风$|长征$"),
    ("score", r"(?:比分|战胜|击败|负于|赢|输|以)[是为了：:]?\s?$"),
)
_KINDS = {
    language: tuple((kind, re.compile(pattern)) for kind, pattern in table) for language, table in (("en", _ENGLISH), ("zh", _CHINESE))
}


def kind_of(before: str, language: Language) -> str:
    """before: the end of the text before the expression. Empty: it says nothing."""
    return next((kind for kind, pattern in _KINDS[language] if pattern.search(before)), "")


def is_counted_in_roman(word: str, before: str) -> bool:
    """Whether a word is a Roman numeral that the word before it asks for: ``Chapter IV``, ``Henry VIII``."""
    if roman_value(word.rstrip(".,;:!?)\"'")) is None:
        return False
    return kind_of(before, "en") in ("section", "ruler") or kind_of(before, "zh") == "ordinal"
