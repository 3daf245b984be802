"""English in the International Phonetic Alphabet as phonemes of CMU's dictionary. Pure.

The symbols are those of General American; British ones, and those of other dictionaries, stand for the same words' phonemes.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from bistream.errors import InvalidInputError

# Phonemes, vowels without their stress, and how they are written once ``_ALIKE`` is applied. The longest spelling at a place counts.
_TABLE = """
AA=ɑ,ɒ,a AE=æ AH=ə,ᵊ,ʌ,ɐ AO=ɔ EH=ɛ,e IH=ɪ,ɨ,ᵻ IY=i UH=ʊ UW=u,ʉ
IH+OW=ɪəʊ UH+OW=ʊəʊ AW=aʊ,au,ɑʊ AY=aɪ,ai,ɑɪ,ʌɪ EY=eɪ,ei,ɛɪ OW=oʊ,ou,əʊ,əu,o OY=ɔɪ,ɔi,oɪ,oi
ER=ɝ,ɚ,ɜ,ɝr,ɚr,ɜr,ɝːr,ɜːr,ər,r\u0329 AO+R=or IH+R=ɪə,ɪər EH+R=eə,eər,ɛə,ɛər UH+R=ʊə,ʊər
AH+L=l\u0329 AH+M=m\u0329 AH+N=n\u0329 AH+NG=ŋ\u0329
B=b CH=tʃ,ʧ D=d DH=ð F=f G=g,ɡ HH=h,ɦ HH+W=ʍ JH=dʒ,ʤ K=k L=l M=m,ɱ N=n NG=ŋ
P=p R=r S=s SH=ʃ T=t,ɾ,ʔ TH=θ V=v W=w Y=j Z=z ZH=ʒ
"""
PHONEMES = {
    spelling: phonemes.split("+")
    for phonemes, _, spellings in (row.partition("=") for row in _TABLE.split())
    for spelling in spellings.split(",")
}
WEAK = {"ɪə": ["IY", "AH"], "ʊə": ["UW", "AH"]}  # two syllables without a stress (media, influence), not an R (near, poor)
STRESSES = {"ˈ": "1", "ˌ": "2"}
_BETWEEN = frozenset("ː.|-()")  # no sounds of their own, but an affricate or a diphthong does not reach over one
# The last argument is dropped: tie bars, aspiration, and marks that tell no two phonemes of English apart.
_ALIKE = str.maketrans("ɹɻ˞ɫ':ˑ‿\u030d", "rrrlˈːː \u0329", "\u0361\u035c\u032f\u0325\u032a\u031aʰ")
_MARKS = "[\u0300-\u036f]"  # a letter with another mark is another sound
_SYMBOL = re.compile(f"(?:{'|'.join(sorted(PHONEMES, key=len, reverse=True))})(?!{_MARKS})|.{_MARKS}*")
_NEAREST = dict(zip("yøœxχɣʁʀçɲʎɸβʋɕʑ", "u ɜː ɜː k k ɡ ɹ ɹ ʃ nj lj f v v ʃ ʒ".split(), strict=True))


def arpabet_of(written: str) -> Iterator[str]:
    """Phonemes with the stress of vowels, such as AH0. A word of one vowel without a mark is stressed. Raises ``InvalidInputError``."""
    for word in unicodedata.normalize("NFD", written).translate(_ALIKE).split():
        phonemes = list(_phonemes_of(word.strip("/[]")))
        vowels = [index for index, phoneme in enumerate(phonemes) if phoneme[-1].isdigit()]
        if len(vowels) == 1 and not STRESSES.keys() & set(word):
            phonemes[vowels[0]] = phonemes[vowels[0]][:-1] + "1"
        yield from phonemes


def _phonemes_of(word: str) -> Iterator[str]:
    stress = "0"  # of the next vowel
    for symbol in _SYMBOL.findall(word):
        if symbol in STRESSES:
            stress = STRESSES[symbol]
        elif symbol in PHONEMES:
            is_weak = stress == "0" and symbol in WEAK and not STRESSES.keys().isdisjoint(word)
            for phoneme in WEAK[symbol] if is_weak else PHONEMES[symbol]:
                is_vowel = phoneme[0] in "AEIOU"
                yield phoneme + stress if is_vowel else phoneme
                stress = "0" if is_vowel else stress
        elif symbol not in _BETWEEN:
            shown = unicodedata.normalize("NFC", symbol)[:20]
            instead = _NEAREST.get(shown, "the nearest sound of English")
            raise InvalidInputError(f"The IPA symbol {shown!r} is no sound of English, which alone is read here; write {instead} for it.")
