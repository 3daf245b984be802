"""English words in IPA, as vendors' documents write them, are phonemes of the model, and nothing else is."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.errors import InvalidInputError
from bistream.families.phoneme_tokens import ARPABET_TOKENS
from bistream.text.ipa import PHONEMES, STRESSES, WEAK, arpabet_of

KNOWN = frozenset(token.strip("[]") for token in ARPABET_TOKENS)
VOWELS = frozenset(name[:-1] for name in KNOWN if name.endswith("0"))
SYMBOL = st.sampled_from(sorted(PHONEMES))
MARKED = st.tuples(st.sampled_from(["", *STRESSES]), SYMBOL)
DIACRITICS = ["\u0329", "\u030d", "\u0361", "\u0303", "\u0327", "\u0325", "ç", "ǖ", "ː", "˞", ".", " ", "y", "/", "[", "]"]


def read(written: str) -> list[str] | str:
    """Or the sentence by which it is refused."""
    try:
        return list(arpabet_of(written))
    except InvalidInputError as error:
        return error.sentence


@given(st.lists(MARKED).map(lambda marked: "".join(mark + symbol for mark, symbol in marked)))
def test_symbols_in_any_order_are_phonemes_of_the_model(written: str) -> None:
    said = read(written)
    assert isinstance(said, list) and KNOWN.issuperset(said) and not VOWELS & set(said)


@given(st.lists(MARKED, min_size=2, max_size=8))
def test_a_mark_belongs_to_the_next_vowel_and_others_have_no_stress(marked: list[tuple[str, str]]) -> None:
    """Dots keep symbols apart that would be one sound."""
    expected, stress = [], "0"
    for mark, symbol in [("", "ə"), *marked, ("", "ə")]:  # never a word of one syllable
        stress = STRESSES.get(mark, stress)
        is_weak = symbol in WEAK and stress == "0" and any(one in STRESSES for one, _ in marked)
        for name in WEAK[symbol] if is_weak else PHONEMES[symbol]:
            expected.append(f"{name}{stress}" if name in VOWELS else name)
            stress = "0" if name in VOWELS else stress
    assert read(".".join(["ə", *(mark + symbol for mark, symbol in marked), "ə"])) == expected


@given(st.lists(st.one_of(SYMBOL, st.sampled_from([*DIACRITICS, *STRESSES]))).map("".join) | st.text(max_size=8))
def test_every_text_is_phonemes_or_one_sentence_in_both_forms_of_unicode(written: str) -> None:
    said = read(written)
    assert said == read(unicodedata.normalize("NFC", written)) == read(unicodedata.normalize("NFD", written))
    assert KNOWN.issuperset(said) if isinstance(said, list) else said.endswith("for it.")


@given(st.lists(st.sampled_from(["ˈkæts", "/kɹiːt/", "[mæn]", "tə.ˈmeɪ.toʊ"]), max_size=4))
def test_words_are_spoken_one_after_the_other(words: list[str]) -> None:
    assert read(" ".join(words)) == [phoneme for word in words for phoneme in arpabet_of(word)]


@pytest.mark.parametrize(
    ("written", "phonemes"),
    [
        ("pɪˈkɑːn", "P IH0 K AA1 N"),  # Amazon Polly
        ("ˈpi.kæn", "P IY1 K AE0 N"),
        ("d͡ʒʌmp", "JH AH1 M P"),
        ("tə.ˈmeɪ.toʊ", "T AH0 M EY1 T OW0"),  # Azure
        ("dɔg", "D AO1 G"),
        ("stɑɹt", "S T AA1 R T"),
        ("təˈmeɪ.ɾoʊ", "T AH0 M EY1 T OW0"),  # IBM
        ("təmei̥ɾou̥", "T AH0 M EY0 T OW0"),  # W3C
        ("ˌmænɪˈtoʊbə", "M AE2 N IH0 T OW1 B AH0"),  # Google
        ("ˌʌndɚˈwɑːtɚ", "AH2 N D ER0 W AA1 T ER0"),
        ("ˈbʌɾɚ", "B AH1 T ER0"),
        ("ˈæpəl", "AE1 P AH0 L"),
        ("ˈmɔːɹ", "M AO1 R"),
        ("duːˈpɪljuːmæb", "D UW0 P IH1 L Y UW0 M AE0 B"),  # Deepgram
        ("k|ɑ|ɹ|ˈ|t|i|ʒ|ə", "K AA0 R T IY1 ZH AH0"),  # Cartesia
        ("dʒ|i|n|z", "JH IY1 N Z"),
        ("n|aʊ", "N AW1"),
        ("/kriːt/", "K R IY1 T"),  # Inworld
        ("ˈkuːɡl̩", "K UW1 G AH0 L"),  # KugelAudio
        ("tɒmɑtoʊ", "T AA0 M AA0 T OW0"),  # VoiceGenie
        ("həˈləʊ", "HH AH0 L OW1"),  # British
        ("ˈnɜːs", "N ER1 S"),
        ("ˈreɪdɪəʊ", "R EY1 D IH0 OW0"),
        ("ˈmiːdɪə nɪə aɪˈdɪə", "M IY1 D IY0 AH0 N IH1 R AY0 D IH1 R"),
        ("ˈkɛəɹi", "K EH1 R IY0"),
        ("ˈdrɔːɪŋ", "D R AO1 IH0 NG"),
        ("ˈbʌʔn̩", "B AH1 T AH0 N"),
        ("'naɪt.ʃɜ:t", "N AY1 T SH ER0 T"),
    ],
)
def test_words_of_vendors_documents(written: str, phonemes: str) -> None:
    assert read(written) == phonemes.split()


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ("lyks", "The IPA symbol 'y' is no sound of English, which alone is read here; write u for it."),
        ("lɔx", "'x' .*; write k for it"),
        ("ˈnɪçt", "'ç' .*; write ʃ for it"),
        ("ʁɔʃ", "'ʁ' .*; write ɹ for it"),
        ("bɔ\u0303", "'ɔ\u0303' .* nearest sound of English"),
        ("ma˥", "'˥' .* nearest sound"),
        ("hEloU", "'E' .* nearest sound"),
    ],
)
def test_a_symbol_without_a_phoneme_of_english_is_named(written: str, sentence: str) -> None:
    with pytest.raises(InvalidInputError, match=sentence):
        list(arpabet_of(written))
