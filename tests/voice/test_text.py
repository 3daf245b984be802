"""Texts as people and language models write them are spoken as the plain sentence: the same speech tokens, so the same sound."""

from __future__ import annotations

import pytest

from tests.voice.speaking import VoiceUnderTest, words_with_blanks

PLAIN = "The postman brought a heavy parcel, and it's for you."
VARIANTS = {
    "no-break blanks": PLAIN.replace(" ", "\u00a0"),
    "capitals": PLAIN.upper(),
    "CRLF": PLAIN.replace(" ", "\r\n"),
    "zero-width spaces": PLAIN.replace(" ", " \u200b"),
    "emoji and curly quotes": PLAIN.replace(", ", ", \U0001f4e6 ").replace("'", "\u2019").replace(".", " \U0001f44d\U0001f3fd."),
    "SSML": "<speak>" + PLAIN.replace(", ", ', <break time="1s"/> ') + "</speak>",
}


@pytest.fixture(scope="module")
def plain(voice: VoiceUnderTest) -> tuple[int, ...]:
    return voice.speak(words_with_blanks(PLAIN)).tokens


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_is_spoken_as_the_plain_sentence(voice: VoiceUnderTest, plain: tuple[int, ...], name: str) -> None:
    text = VARIANTS[name]
    assert voice.speak([text[:7], text[7:20], text[20:]]).tokens == plain


@pytest.mark.parametrize("text", ("...", "\u3002\u3002\u3002", "\U0001f600", "<speak></speak>"))
def test_marks_alone_never_reach_the_model(voice: VoiceUnderTest, text: str) -> None:
    assert voice.speak(text).tokens == () == voice.speak([text], is_whole=True).tokens
