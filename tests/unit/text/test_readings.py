"""Written forms as they are read out: alone, and inside a sentence of their language."""

from __future__ import annotations

import re

import pytest

from bistream.text.normalization import TextNormalizer, load_read_out
from bistream.text.reading_context import Language
from tests.unit.text.readings import READINGS

SENTENCES: dict[Language, str] = {"en": "Then {} came up.", "zh": "后来{}，好的。"}


def heard(text: str) -> str:
    """What of a text can be heard, in one form."""
    text = re.sub(r"[-,'’\"()（）。，]|(?<!\w)\.|\.(?!\w)", " ", text.lower().replace("'", ""))
    text = re.sub(r"(?<=hundred) and |(?<=thousand) and |(?<=million) and ", " ", text)
    text = re.sub(r"[二两](?=[百千万])", "二", text.replace("幺", "一"))
    text = re.sub(r"\s*([\u3400-\u9fff])\s*", r"\1", text)
    return " ".join(text.split())


def read_out(text: str, language: Language) -> str:
    normalizer = TextNormalizer(language if text[0] != SENTENCES[language][0] else "auto", language, load_read_out())
    return "".join(one.character for one in (*normalizer.push(text), *normalizer.finish()))


@pytest.mark.parametrize(("language", "form", "readings"), READINGS, ids=[f"{row[0]}-{row[1]}" for row in READINGS])
def test_a_written_form_is_read_rightly(language: Language, form: str, readings: list[str]) -> None:
    for sentence in ("{}", SENTENCES[language]):
        assert heard(read_out(sentence.format(form), language)) in [heard(sentence.format(reading)) for reading in readings]
