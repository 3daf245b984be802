"""How an utterance is to be spoken, by the names of the wire contract: seed, temperature, top_k, top_p, speed, instruct_text and
text_normalization. Pure."""

from __future__ import annotations

from bistream.errors import InvalidInputError
from bistream.limits import check_seed, check_speed, check_temperature, check_text_normalization, check_top_k, check_top_p, is_instruction

Values = dict[str, int | float | str]

MAX_INSTRUCTION_CHARS = 4096  # as OpenAI has it; servers may allow fewer


def check_values(values: Values, max_session_chars: int = MAX_INSTRUCTION_CHARS) -> None:
    """max_session_chars: of a text on the servers, which bounds instructions, too. Raises ``InvalidInputError``."""
    for name, value in values.items():
        if name == "text_normalization":
            check_text_normalization(str(value))
        elif isinstance(value, str):
            _check_instruction(value, min(MAX_INSTRUCTION_CHARS, max_session_chars))
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
    """An instruction as vendors have it, where what clients send for an option that is not set is none."""
    return {"instruct_text": text} if text is not None and is_instruction(text) else {}


def _check_instruction(text: str, most: int) -> None:
    if len(text) > most:
        raise InvalidInputError(f"The instruction is longer than {most} characters; shorten it.")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidInputError("The instruction has half a character (a lone UTF-16 surrogate); correct it.")
