"""Pronunciations as the special tokens of a model that has them (CosyVoice3): ARPAbet of CMU's dictionary, pinyin, and IPA. Pure.

Inside the text preparation a private character stands for a token. A text cannot hold one: the first stage drops them.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable, Iterator

from bistream.errors import InvalidInputError
from bistream.text.ipa import arpabet_of

_SYLLABLE = re.compile(r"(zh|ch|sh|[bpmfdtnlgkhjqxrzcsyw])?([aeiouüv]+(?:ng|n|r)?)([1-5])?")
_FIRST_PRIVATE = 0xF0000
_TONES = {"1": "\u0304", "2": "\u0301", "3": "\u030c", "4": "\u0300"}  # combining marks; 5: none


def _arpabet(written: str) -> Iterator[tuple[str, ...]]:
    for phoneme in written.upper().split():
        yield (f"[{phoneme}]",)


def _pinyin(written: str) -> Iterator[tuple[str, ...]]:
    """Of each initial and final, the tokens that it may be. Tones are digits behind the syllables."""
    for syllable in written.lower().replace("u:", "ü").split():
        found = _SYLLABLE.fullmatch(syllable)
        if found is None:
            raise InvalidInputError(f"The pinyin {syllable[:20]!r} is no syllable with a tone, such as chong2; correct it.")
        initial, final, tone = found[1], found[2].replace("v", "ü"), found[3]
        if initial:
            yield (f"[{initial}]",)
        yield tuple(f"[{_with_tone(one, _TONES.get(tone, ''))}]" for one in (final, final.replace("ü", "v"), final.replace("ü", "u")))


def _with_tone(final: str, mark: str) -> str:
    """On a or e, on the o of ou, else on the last vowel."""
    vowel = next((one for one in ("a", "e", "ou") if one in final), None)
    place = final.index(vowel) if vowel is not None else max(index for index, one in enumerate(final) if one in "iouüv")
    return unicodedata.normalize("NFC", final[: place + 1] + mark + final[place + 1 :])


ALPHABETS: dict[str, Callable[[str], Iterator[tuple[str, ...]]]] = {
    "cmu-arpabet": _arpabet,
    "ipa": lambda written: _arpabet(" ".join(arpabet_of(written))),
    "pinyin": _pinyin,
    "cmu": _arpabet,  # DashScope's names of the two
    "py": _pinyin,
}


def phoneme_tokens(alphabet: str, written: str, known: frozenset[str]) -> list[str]:
    """known: the tokens that the model has. Raises ``InvalidInputError``."""
    if not known:
        raise InvalidInputError("This model knows no phonemes; respell the word with sub, or in a lexicon.")
    if alphabet not in ALPHABETS:
        raise InvalidInputError(f"The alphabet {alphabet[:20]!r} of a phoneme is not known here; use {' or '.join(ALPHABETS)}.")
    tokens = []
    for candidates in ALPHABETS[alphabet](written):
        token = next((one for one in candidates if one in known), None)
        if token is None:
            raise InvalidInputError(f"The model has no phoneme {candidates[0][:20]}; correct it.")
        tokens.append(token)
    if not tokens:
        raise InvalidInputError(f"The phonemes {written[:20]!r} have no sound; correct them.")
    return tokens


def private_characters(tokens: list[str], known: frozenset[str]) -> str:
    ordered = _ordered(known)
    return "".join(chr(_FIRST_PRIVATE + ordered.index(token)) for token in tokens)


def token_of(character: str, known: frozenset[str]) -> str | None:
    """The phoneme token that a character of the prepared text stands for. None: it is text."""
    place, ordered = ord(character) - _FIRST_PRIVATE, _ordered(known)
    return ordered[place] if 0 <= place < len(ordered) else None


@functools.lru_cache(maxsize=4)
def _ordered(known: frozenset[str]) -> list[str]:
    return sorted(known)
