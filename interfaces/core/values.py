"""How an utterance is to be spoken: inputs of a start by their names in the wire contract. Pure."""

from __future__ import annotations

from bistream.contract.checks import is_instruction
from bistream.contract.fields import COSYVOICE2_BISTREAM
from bistream.errors import InvalidInputError

Values = dict[str, int | float | str]

MAX_INSTRUCTION_CHARS = 4096  # as OpenAI has it; servers may allow fewer


def check_values(values: Values, max_session_chars: int = MAX_INSTRUCTION_CHARS) -> None:
    """max_session_chars: of a text on the servers, which bounds instructions, too. Raises ``InvalidInputError``."""
    for name, value in values.items():
        check = COSYVOICE2_BISTREAM.by_name[name].check
        if check is not None:
            check(value)
        elif isinstance(value, str):
            _check_instruction(value, min(MAX_INSTRUCTION_CHARS, max_session_chars))


def instructed(text: str | None) -> Values:
    """An instruction as vendors have it, where what clients send for an option that is not set is none."""
    return {"instruct_text": text} if text is not None and is_instruction(text) else {}


def _check_instruction(text: str, most: int) -> None:
    if len(text) > most:
        raise InvalidInputError(f"The instruction is longer than {most} characters; shorten it.")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidInputError("The instruction has half a character (a lone UTF-16 surrogate); correct it.")
