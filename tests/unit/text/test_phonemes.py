"""Pronunciations are tokens of the model, and only those."""

from __future__ import annotations

import itertools

import pytest

from bistream.errors import InvalidInputError
from bistream.families.phoneme_tokens import PHONEME_TOKENS
from bistream.text.markup import MarkupReader, blanked, plain
from bistream.text.phonemes import phoneme_tokens

KNOWN = frozenset(PHONEME_TOKENS)
SYLLABLES = (
    "a ai an ang ao ba bei biao bing bo ceng chuang ci dia diu dong e en fou gua guai gui hun huo jia jiang jiong ju juan jue jun kuang lü "
    "lüe lv lve lu: luan mie miu nian niang ning nü ou pin qian qiong que rui ruo shei shuai shuang tie wa wei wu xiang xiong xun yan yang "
    "yi yong you yuan yun zha zhei zhong zhui zhuo zong"
).split()


@pytest.mark.parametrize(
    ("alphabet", "written", "tokens"),
    [
        ("cmu-arpabet", "T AH0 M EY1 T OW0", "[T] [AH0] [M] [EY1] [T] [OW0]"),
        ("cmu-arpabet", "ae1 k", "[AE1] [K]"),
        ("cmu", "AE1 K", "[AE1] [K]"),
        ("ipa", "təˈmeɪtoʊ", "[T] [AH0] [M] [EY1] [T] [OW0]"),
        ("py", "chong2 qing4", "[ch] [óng] [q] [ìng]"),
        ("pinyin", "chong2 qing4", "[ch] [óng] [q] [ìng]"),
        (
            "pinyin",
            "lv3 lüe4 liu2 gui3 yu4 er2 hao",
            "[l] [ǚ] [l] [vè] [l] [iú] [g] [uǐ] [y] [ù] [ér] [h] [ao]",
        ),
    ],
)
def test_what_is_said(alphabet: str, written: str, tokens: str) -> None:
    assert phoneme_tokens(alphabet, written, KNOWN) == tokens.split()


def test_every_syllable_has_tokens_in_every_tone() -> None:
    for syllable in SYLLABLES:
        said = [tuple(phoneme_tokens("pinyin", f"{syllable}{tone}", KNOWN)) for tone in "1234"]
        assert len(set(said)) == 4 and KNOWN.issuperset(itertools.chain(*said)), syllable


@pytest.mark.parametrize(
    ("alphabet", "written", "sentence"),
    [
        ("cmu-arpabet", "T XX", r"no phoneme \[XX\]"),
        ("cmu-arpabet", "<|endofprompt|>", "no phoneme"),
        ("pinyin", "chong6", "'chong6'"),
        ("pinyin", "bong\u0301", "no syllable"),
        ("ipa", "ty", "'y' is no sound of English"),
        ("ipa", "ˈ", "have no sound"),
        ("cmu-arpabet", " ", "have no sound"),
        ("x-sampa", "t", "'x-sampa'"),
    ],
)
def test_what_is_none_is_refused(alphabet: str, written: str, sentence: str) -> None:
    with pytest.raises(InvalidInputError, match=sentence):
        phoneme_tokens(alphabet, written, KNOWN)


def test_they_stand_in_the_place_of_their_word() -> None:
    text = 'a <phoneme alphabet="cmu-arpabet" ph="B IY1">b</phoneme> c'
    marked = MarkupReader(KNOWN).push(text, is_end=True)
    assert [one.text for one in marked] == ["a", " ", "[B]", "[IY1]", " ", "c"]
    assert [one.text for one in marked if one.is_token] == ["[B]", "[IY1]"]
    assert plain(marked) == "a 00 c" and len(blanked(marked)) == len(text)
