"""The rules for the values of a request, one function and one sentence for each. The table of fields names them; the gate, the models, the
clients and the scripts apply them. Pure; every check raises ``InvalidInputError`` that says what to send.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from bistream.errors import InvalidInputError

SESSION_ID_PATTERN = re.compile(r"[A-Za-z0-9_.:-]{1,128}\Z")
SPEAKER_ID_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")  # of a voice that is registered: the name of a file
SPEAKER_NAME_PATTERN = re.compile(r"[\w-]{1,64}\Z")  # of any voice: presets have names of their own, such as 中文女
_REFERENCE_HASH = re.compile(r"[0-9a-f]{64}\Z")  # the output of ``voices.reference_hash``
# Preparation of a text. raw: none; off: characters without a sound are dropped; auto, zh, en: numbers are read out as well, with auto in
# the language of the sentence. Each but raw may have "+markdown" behind it.
_READINGS = ("off", "auto", "zh", "en")
RAW, MARKDOWN = "raw", "+markdown"
SERVER_TEXT_NORMALIZATIONS = (RAW, *_READINGS, *(reading + MARKDOWN for reading in _READINGS))
TEXT_NORMALIZATIONS = (*SERVER_TEXT_NORMALIZATIONS, MARKDOWN)  # of a request; the last one: as the server has it, with Markdown
SSML = "ssml"
TEXT_TYPES = ("text", SSML)
NO_INSTRUCTIONS = ("", "none", "null", "undefined")  # what clients make of an option that was not set
MIN_SPEED, MAX_SPEED = 0.5, 2.0  # the mel is stretched linearly; outside this range the result is no longer speech
GENDERS = ("female", "male")  # of a voice made of labels: the model's own words, in the order of its tokens
LEVELS = ("very_low", "low", "moderate", "high", "very_high")
MAX_TEMPERATURE = 10.0  # far above anything useful; keeps the scores finite in half precision
MAX_SEED = 2**63 - 1
MAX_TOP_K = 100  # four times the released value; sampling sorts as many candidates for everybody as anybody asks for
_SPEAKABLE = re.compile(r"[^\W_]")


def check_session_id(session_id: str, name: str = "session_id") -> None:
    if SESSION_ID_PATTERN.match(session_id) is None:
        raise InvalidInputError(f"{name} must be 1 to 128 of the characters A-Z a-z 0-9 _ . : and -; choose another.")


def check_session_secret(secret: object) -> None:
    check_session_id(secret if isinstance(secret, str) else "", "The string parameter session_secret")


def check_speaker_id(speaker_id: str) -> None:
    if SPEAKER_ID_PATTERN.match(speaker_id) is None:
        raise InvalidInputError("speaker_id must be 1 to 64 of the characters A-Z a-z 0-9 _ and -; correct it.")


def check_speaker_name(speaker_id: str) -> None:
    """The ``speaker_id`` of a request, which may be a preset's."""
    if SPEAKER_NAME_PATTERN.match(speaker_id) is None:
        raise InvalidInputError("speaker_id must be 1 to 64 letters, digits, _ and -; correct it.")


def check_reference_hash(value: str) -> None:
    """The value is no part of the sentence: whoever knows a hash may speak with its voice."""
    if _REFERENCE_HASH.match(value) is None:
        raise InvalidInputError("reference_hash must be 64 lower-case hexadecimal digits; compute it as the wire protocol says.")


def check_seed(seed: int) -> None:
    if not 0 <= seed <= MAX_SEED:
        raise InvalidInputError(f"seed is {seed}; set it to 0 or more, below 2^63.")


def check_temperature(temperature: float) -> None:
    if not 0.0 <= temperature <= MAX_TEMPERATURE:  # rejects NaN as well
        raise InvalidInputError(f"temperature is {temperature:g}; set it between 0 (greedy) and {MAX_TEMPERATURE:g}.")


def check_top_k(top_k: int) -> None:
    if not 1 <= top_k <= MAX_TOP_K:
        raise InvalidInputError(f"top_k is {top_k}; set it between 1 and {MAX_TOP_K}.")


def check_top_p(top_p: float) -> None:
    if not 0.0 < top_p <= 1.0:
        raise InvalidInputError(f"top_p is {top_p:g}; set it above 0 and at most 1.")


def check_speed(speed: float) -> None:
    if not (math.isfinite(speed) and MIN_SPEED <= speed <= MAX_SPEED):
        raise InvalidInputError(f"speed is {speed:g}; set it between {MIN_SPEED:g} and {MAX_SPEED:g}.")


def one_of(name: str, known: tuple[str, ...]) -> Callable[[str], None]:
    """The rule of a field that takes one of a few words."""

    def check(word: str) -> None:
        if word not in known:
            raise InvalidInputError(f"{name} must be one of {', '.join(known)}; correct it.")

    return check


check_text_normalization = one_of("text_normalization", TEXT_NORMALIZATIONS)


def is_instruction(text: str | None) -> bool:
    """Whether an ``instruct_text`` says anything. Speaking it as one would change the voice, or be heard."""
    return text is not None and text.strip().lower() not in NO_INSTRUCTIONS


def check_offline_length(tokens: int, max_offline_tokens: int, tokens_per_second: float) -> None:
    """tokens: speech tokens of an utterance that is rendered as a whole."""
    if tokens > max_offline_tokens:
        seconds = max_offline_tokens / tokens_per_second
        raise InvalidInputError(
            f"The speech is longer than {seconds:g} s, too long to be rendered as a whole; split the text or stream it."
        )


def is_speakable(text: str) -> bool:
    """Whether it has a letter or a digit, of any script."""
    return _SPEAKABLE.search(text) is not None


def count_characters(data: bytes) -> int:
    """Characters that begin in a piece of UTF-8; a split sequence counts in the piece where it begins."""
    return sum((byte & 0xC0) != 0x80 for byte in data)


def check_text_length(characters: int, max_text_chars: int) -> None:
    """characters: total over all pieces of a session's text."""
    if characters > max_text_chars:
        raise InvalidInputError(f"The text of the session is longer than {max_text_chars} characters; split it over several sessions.")


def check_transcript_length(characters: int, max_text_chars: int) -> None:
    """characters: length of ``reference_text``."""
    if characters > max_text_chars:
        raise InvalidInputError(f"The reference text is longer than {max_text_chars} characters; use a shorter reference.")


def check_instruction_length(characters: int, max_text_chars: int) -> None:
    """characters: length of ``instruct_text``."""
    if characters > max_text_chars:
        raise InvalidInputError(f"instruct_text is longer than {max_text_chars} characters; shorten it.")
