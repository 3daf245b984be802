"""The special tokens that CosyVoice3 adds for pronunciation: ARPAbet phonemes and the initials and finals of pinyin.

In the order of their ids (upstream's cosyvoice/tokenizer/tokenizer.py), 151664 to 151923 of the released model. A vowel of ARPAbet comes
without and with its stress; the tone of a final is a mark on its vowel, in Unicode's composed form: a token matches as written, before
any normalisation.
"""

from __future__ import annotations

_VOWELS = frozenset("AA AE AH AO AW AY EH ER EY IH IY OW OY UH UW".split())
_PHONEMES = ("AA AE AH AO AW AY B CH D DH EH ER EY F G HH IH IY JH K L M N NG OW OY P R S SH T TH UH UW V W Y Z ZH").split()
_PINYIN = """
a ai an ang ao b c ch d e ei en eng f g h i ian in ing iu ià iàn iàng iào iá ián iáng iáo iè ié iòng ióng iù iú iā iān iāng iāo iē
iě iōng iū iǎ iǎn iǎng iǎo iǒng iǔ j k l m n o ong ou p q r s sh t u uang ue un uo uà uài uàn uàng uá uái uán uáng uè ué uì uí uò
uó uā uāi uān uāng uē uě uī uō uǎ uǎi uǎn uǎng uǐ uǒ vè w x y z zh à ài àn àng ào á ái án áng áo è èi èn èng èr é éi én éng ér ì
ìn ìng í ín íng ò òng òu ó óng óu ù ùn ú ún ā āi ān āng āo ē ēi ēn ēng ě ěi ěn ěng ěr ī īn īng ō ōng ōu ū ūn ǎ ǎi ǎn ǎng ǎo ǐ ǐn
ǐng ǒ ǒng ǒu ǔ ǔn ǘ ǚ ǜ
""".split()

ARPABET_TOKENS = tuple(f"[{name}{stress}]" for name in _PHONEMES for stress in (("", 0, 1, 2) if name in _VOWELS else ("",)))
PINYIN_TOKENS = tuple(f"[{name}]" for name in _PINYIN)
PHONEME_TOKENS = ARPABET_TOKENS + PINYIN_TOKENS
