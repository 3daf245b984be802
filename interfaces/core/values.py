"""How an utterance is to be spoken, by the names of the wire contract: seed, temperature, top_k, top_p, speed, instruct_text and
text_normalization. Pure."""

from __future__ import annotations

from bistream.errors import InvalidInputError
from bistream.limits import check_seed, check_speed, check_temperature, check_text_normalization, check_top_k, check_top_p

Values = dict[str, int | float | str]

MAX_INSTRUCTION_CHARS = 4096  # as OpenAI has it; servers may allow fewer, and say so


def check_values(values: Values) -> None:
    """Raises ``InvalidInputError``."""
    for name, value in values.items():
        if name == "text_normalization":
            check_text_normalization(str(value))
        elif isinstance(value, str):
            _check_instruction(value)
        elif name == "seed":
            check_seed(int(value))
        elif name == "temperature":
            check_temperature(value)
        elif name == "top_k":
            check_top_k(int(value))
        elif name == "top_p":
            check_top_p(value)
        elif name == "speed":
            check_speed(value)


def instructed(text: str | None) -> Values:
    """An instruction as vendors have it, where blanks alone are none."""
    return {"instruct_text": text} if text is not None and text.strip() else {}


def _check_instruction(text: str) -> None:
    if len(text) > MAX_INSTRUCTION_CHARS:
        raise InvalidInputError(f"The instruction is longer than {MAX_INSTRUCTION_CHARS} characters; shorten it.")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidInputError("The instruction has half a character (a lone UTF-16 surrogate); correct it.")
