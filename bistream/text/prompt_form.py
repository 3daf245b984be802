"""What stands before the text in the language model's input: instruction and transcript, as each family knows them from its training. Pure.

CosyVoice2: a request has an instruction or a transcript, or neither. CosyVoice3 always has an instruction, which ends in
``<|endofprompt|>``; the default one where a request has no wish. A wish stands behind the default one's sentence, as in upstream's
``instruct_list`` (cosyvoice/utils/common.py). A transcript, or in cross-lingual speech the text itself, may begin with its own instruction,
as upstream's callers write it.
"""

from __future__ import annotations

from dataclasses import dataclass

from bistream.text.special_tokens import END_OF_PROMPT


@dataclass(frozen=True)
class PromptForm:
    """has_speech: whether the voice's speech tokens go with it; without their transcript they would be spoken text to the model."""

    instruction: str
    transcript: str
    has_speech: bool = True


def make_prompt_form(default_instruction: str, instruct_text: str, prompt_text: str) -> PromptForm:
    """default_instruction: ``Family.default_instruction``. instruct_text, prompt_text: of the request, either may be empty.

    An instruction is otherwise left as it is: upstream normalises the text to speak, and no instruction.
    """
    if not default_instruction:
        return PromptForm(_ended(instruct_text), prompt_text)
    own, mark, transcript = prompt_text.partition(END_OF_PROMPT)
    if not mark:
        own, transcript = "", prompt_text
    instruction = _ended(_with_default(default_instruction, instruct_text)) if instruct_text or not mark else own + mark
    return PromptForm(instruction, transcript, has_speech=not mark or bool(transcript.strip()))


def own_instruction(default_instruction: str, text: bytes) -> tuple[str, bytes]:
    """The instruction with which a text begins, and the rest of the text. Empty where it has none, or the family needs none."""
    head, mark, rest = text.partition(END_OF_PROMPT.encode())
    if not default_instruction or not mark:
        return "", text
    try:
        return head.decode("utf-8") + END_OF_PROMPT, rest
    except UnicodeDecodeError:  # whoever reads the whole text says so
        return "", text


def _with_default(default_instruction: str, instruct_text: str) -> str:
    """The default one alone where there is no wish; a text with ``<|endofprompt|>`` is complete."""
    if END_OF_PROMPT in instruct_text or instruct_text.startswith(default_instruction):
        return instruct_text
    return f"{default_instruction} {instruct_text}" if instruct_text else default_instruction


def _ended(instruction: str) -> str:
    """Ended by ``<|endofprompt|>``, which upstream leaves to its callers. Empty for an empty one."""
    return instruction if not instruction or instruction.endswith(END_OF_PROMPT) else instruction + END_OF_PROMPT
