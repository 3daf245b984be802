"""The vocabulary of the merged checkpoint, as it is written; ``MergedIds`` maps between it and the engines' ids. Pure.

They are upstream's (CosyVoice, examples/grpo/cosyvoice2/pretrained_to_huggingface.py): text ids as they are, then the speech tokens,
the three stop ids and the two special vectors; the vocabulary is padded to a multiple of 128. For the released tokenizer of 151663 ids
the first speech token is 151663, eos 158224, fill 158226, start of sequence 158227 and task 158228, of 158336 rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from bistream.text2token.engine import TokenSpace
from bistream.text2token.tensorrt_llm.merged_ids import MergedIds

PADDING = 128
NUM_STOP_IDS = 3  # eos, a second stop id, fill
SPECIAL_TOKENS = ("<|eos1|>", "<|eos2|>", "<|eos3|>", "<|sos|>", "<|task_id|>")  # after the speech tokens; eos3 is fill


def speech_token_text(token: int) -> str:
    """The string of a speech token in the merged tokenizer."""
    return f"<|s_{token}|>"


@dataclass(frozen=True)
class MergedVocabulary:
    """text_size: ids of the tokenizer, special tokens included; not the rows of the text embedding, which may be more."""

    text_size: int
    speech_token_size: int

    @property
    def speech_offset(self) -> int:
        return self.text_size

    @property
    def head_rows(self) -> int:
        """Rows of the speech head, from ``speech_offset`` on."""
        return self.speech_token_size + NUM_STOP_IDS

    @property
    def eos(self) -> int:
        return self.speech_offset + self.speech_token_size

    @property
    def fill(self) -> int:
        return self.eos + 2

    @property
    def sos(self) -> int:
        return self.eos + NUM_STOP_IDS

    @property
    def task(self) -> int:
        return self.sos + 1

    @property
    def size(self) -> int:
        """Rows of embedding and head, padding included."""
        return -(-(self.task + 1) // PADDING) * PADDING

    def ids(self, space: TokenSpace) -> MergedIds:
        """Between ids of the engines' space and those of the merged checkpoint."""
        return MergedIds(space, self.speech_offset, self.size)

    def added_tokens(self) -> list[str]:
        """The strings of the ids from ``speech_offset`` on, in order."""
        return [*map(speech_token_text, range(self.speech_token_size)), *SPECIAL_TOKENS]
