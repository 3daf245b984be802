"""Which words and characters belong to an expression that is not read as it is written. Facts for ``spans.py``; pure.

What a list lacks is still read, only without its neighbour: ``5 furlongs`` as two parts instead of one.
"""

from __future__ import annotations

import re

from bistream.text.units import CASED_UNITS, CURRENCY_CODES, UNITS

# Written right after a number, these may decide how it is read (two of them are 两, not 二) or continue it (a date, a time, a fraction).
_COUNTED = (
    "万丈世丘个丸亿代令件伏位余元兆克具刀分刻勺匹千升单卮厘双口只吨周回场块坡堂堆墙壶多天头套字季家寸对封尺尾层岁岭帧幢度座张户扎把担挑捆撮支斗斤日旬时"
    "曲本条杯板枝架根档桶棵段毫盏盒盘瓶百盆石碗碟票秒程窠笼管箩箱篇篮米粒纪线罐网罗群脚腔艘袋袭课贯贴趟跳身辆辈道里针钟钱铢铺锅阙队阵集页顶颗首"
)
_UNITS = (
    "年月号点時點半整几来公平方立斤顷微摄氏华英海里尺寸磅盎司加仑瓦赫兹伏特安培焦耳帕牛美欧日港人民币镑角毛成折倍节期届小星礼拜之汞柱室房后款级版又"
    "次份台"
)
_OPERATORS = "比到至减加乘除等于负零十"
CHINESE_JOINERS = frozenset(_COUNTED + _UNITS + _OPERATORS)
MAX_JOINED_IDEOGRAPHS = 6  # after one another: longer units do not exist, and speech does not wait for more

ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof st jr sr capt col gen gov lt sgt rev hon maj mt ft co ltd inc corp no nos vol apt fig vs etc dept est ave blvd rd "
    "p pp ext ch approx ca "
    "jan feb mar apr jun jul aug sep sept oct nov dec mon tue tues wed thu thur thurs fri sat sun a.m p.m e.g i.e u.s u.k d.c ph.d".split()
)
_BARE_SHORT_FORMS = frozenset("Mr Mrs Dr Jr No Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec".split())
MONTHS = frozenset("January February March April May June July August September October November December".split())
JOINERS = frozenset(
    "b bit bits percent million billion trillion thousand hundred bn mn am pm ad bc bce ce x by st ave blvd rd "
    "street avenue road dollars dollar cents euros euro pounds yen yuan".split()
) | {written.lower() for written in (*UNITS, *CASED_UNITS, *CURRENCY_CODES)}
_SYMBOLS = re.compile(r"[$€£¥￥%‰℃℉°@&+=#²³½¼¾×÷＄％＋＝]|://|www\.|\bWWII?\b")
_ELECTRONIC = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*://|www\.|[^@\s]+@[^@\s]+\.[A-Za-z]|[A-Za-z0-9-]+\.(?:com|org|net|edu|gov|io|ai|cn|co|uk|dev|app)\b"
    r"|^(?:~|\.{1,2})/\w|^/[A-Za-z][\w.-]*/\w|^[A-Za-z]:\\|\w[\w-]*\.(?:pdf|txt|md|csv|json|xml|ya?ml|toml|py|js|ts|sh|cpp|rs|java|html?|css|png"
    r"|jpe?g|gif|svg|mp[34]|wav|flac|zip|tar|gz|docx?|xlsx?|pptx?|exe|dll|log|ini|cfg|conf|sql)\b",
    re.IGNORECASE,
)
_JOINING_MARKS = frozenset("- – — − ~ / x × * ÷ + = < > <= >= ≤ ≥ ≈ a.m. p.m.".split())
_OPENING_MARKS = frozenset("< > <= >= ≤ ≥ ≈ ± =".split())
PER_WORDS = frozenset("second minute hour day night week month year person piece item user seat head".split())
_CLOSING = "\"'”’)]},;:!?*_"


def is_number_like(word: str) -> bool:
    """Whether a word, without blanks, is never read letter by letter as written: digits, symbols, addresses."""
    return any(character.isnumeric() for character in word) or _SYMBOLS.search(word) is not None or is_electronic(word)


def opens_number(word: str) -> bool:
    """A mark of its own that belongs to a number after it."""
    return word in _OPENING_MARKS


def is_electronic(word: str) -> bool:
    """A URL, a domain, a mail address, a path or the name of a file."""
    return _ELECTRONIC.search(word) is not None


def is_abbreviation(word: str) -> bool:
    """A written short form that ends in a dot, or a title or a month: what follows may belong to it."""
    bare = word.rstrip(_CLOSING)
    return bare in MONTHS or (bare.endswith(".") and bare[:-1].lower() in ABBREVIATIONS) or bare in _BARE_SHORT_FORMS


def is_joiner(word: str) -> bool:
    """Whether a word belongs to a number before it: a unit, a scale, half of a day, a dash."""
    bare = word.rstrip(_CLOSING + ".").lower()
    first, *rest = bare.split("/")
    is_unit = (first in JOINERS or (not first and bool(rest))) and all(part in JOINERS or part in PER_WORDS for part in rest)
    return word in _JOINING_MARKS or bare in ("a.m", "p.m") or is_unit


def ends_clause(word: str) -> bool:
    """Whether a word that is no abbreviation ends a sentence or a part of one, so that no number goes on after it."""
    bare = word.rstrip("\"'”’)]}*_")
    return bare.endswith((".", "!", "?", ";")) and not is_abbreviation(word) and not is_joiner(word)
