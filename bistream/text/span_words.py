"""Which words and characters belong to an expression that is not read as it is written. Facts for ``spans.py``; pure.

What a list lacks is still read, only without its neighbour: ``5 furlongs`` as two parts instead of one.
"""

from __future__ import annotations

import re

# Written right after a number, these may decide how it is read (two of them are 两, not 二) or continue it (a date, a time, a fraction).
_COUNTED = (
    "万丈世丘个丸亿代令件伏位余元兆克具刀分刻勺匹千升单卮厘双口只吨周回场块坡堂堆墙壶多天头套字季家寸对封尺尾层岁岭帧幢度座张户扎把担挑捆撮支斗斤日旬时"
    "曲本条杯板枝架根档桶棵段毫盏盒盘瓶百盆石碗碟票秒程窠笼管箩箱篇篮米粒纪线罐网罗群脚腔艘袋袭课贯贴趟跳身辆辈道里针钟钱铢铺锅阙队阵集页顶颗首"
)
_UNITS = "年月号点時點半整几来公平方立斤顷微摄氏华英海里尺寸磅盎司加仑瓦赫兹伏特安培焦耳帕牛美欧日港人民币镑角毛成折倍节期届小星礼拜之"
_OPERATORS = "比到至减加乘除等于负零十"
CHINESE_JOINERS = frozenset(_COUNTED + _UNITS + _OPERATORS)
MAX_JOINED_IDEOGRAPHS = 6  # after one another: longer units do not exist, and speech does not wait for more

ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof st jr sr capt col gen gov lt sgt rev hon maj mt ft co ltd inc corp no nos vol apt fig vs etc dept est ave blvd rd "
    "jan feb mar apr jun jul aug sep sept oct nov dec mon tue tues wed thu thur thurs fri sat sun a.m p.m e.g i.e u.s u.k d.c ph.d".split()
)
MONTHS = frozenset("January February March April May June July August September October November December".split())
JOINERS = frozenset(
    "km m cm mm nm mi ft yd kg g mg lb lbs oz l ml h hr hrs min mins s sec secs ms mph kmh kph hz khz mhz ghz w kw mw kwh v kv mah "
    "b kb mb gb tb kbps mbps gbps bit bits percent million billion trillion thousand hundred bn mn am pm ad bc bce ce x by st ave blvd rd "
    "street avenue road dollars dollar cents euros euro pounds yen yuan".split()
)
_SYMBOLS = re.compile(r"[$€£¥￥%‰℃℉°@&+=#²³½¼¾×÷＄％＋＝]|://|www\.")
_ELECTRONIC = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*://|www\.|[^@\s]+@[^@\s]+\.[A-Za-z]|[A-Za-z0-9-]+\.(?:com|org|net|edu|gov|io|ai|cn|co|uk|dev|app)\b",
    re.IGNORECASE,
)
_CLOSING = "\"'”’)]},;:!?*_"


def is_number_like(word: str) -> bool:
    """Whether a word, without blanks, is never read letter by letter as written: digits, symbols, addresses."""
    return any(character.isnumeric() for character in word) or _SYMBOLS.search(word) is not None or is_electronic(word)


def is_electronic(word: str) -> bool:
    """A URL, a domain or a mail address."""
    return _ELECTRONIC.search(word) is not None


def is_abbreviation(word: str) -> bool:
    """A written short form that ends in a dot, or a title or a month: what follows may belong to it."""
    bare = word.rstrip(_CLOSING)
    return bare in MONTHS or (bare.endswith(".") and bare[:-1].lower() in ABBREVIATIONS) or bare in ("Mr", "Mrs", "Dr", "Jr", "No")


def is_joiner(word: str) -> bool:
    """Whether a word belongs to a number before it: a unit, a scale, half of a day, a dash."""
    bare = word.rstrip(_CLOSING + ".").lower()
    parts = bare.split("/")
    return word in ("-", "–", "x", "×", "*", "a.m.", "p.m.") or bare in ("a.m", "p.m") or (all(parts) and JOINERS.issuperset(parts))


def ends_clause(word: str) -> bool:
    """Whether a word that is no abbreviation ends a sentence or a part of one, so that no number goes on after it."""
    bare = word.rstrip("\"'”’)]}*_")
    return bare.endswith((".", "!", "?", ";")) and not is_abbreviation(word) and not is_joiner(word)
