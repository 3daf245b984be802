"""The vocabulary of the merged checkpoint, as it is written; ``MergedIds`` maps between it and the engines' ids. Pure.

It is upstream's: text ids as they are, then the speech tokens and the ids behind them in the family's order; padded to a multiple of 128.

| | CosyVoice2 | CosyVoice3 |
|---|---|---|
| in FunAudioLLM/CosyVoice | examples/grpo/cosyvoice2/pretrained_to_huggingface.py | runtime/…/convert_cosyvoice3_to_hf.py |
| text ids of the released tokenizer, and first speech token | 151663 | 151924 |
| eos, fill, sos, task | 158224, 158226, 158227, 158228 | 158486, 158488, 158485, 158487 |
| rows without a meaning, then padding | none, 158229 to 158335 | 158489 to 158684, 158685 to 158719 |
"""

from __future__ import annotations

from dataclasses import dataclass

from bistream.families.family import SpeechIds, SpeechRows
from bistream.text2token.engine import TokenSpace
from bistream.text2token.tensorrt_llm.merged_ids import MergedIds

PADDING = 128


def speech_token_text(token: int) -> str:
    """The string of a speech token in the merged tokenizer."""
    return f"<|s_{token}|>"


@dataclass(frozen=True)
class MergedVocabulary(SpeechIds):
    """text_size: ids of the tokenizer, special tokens included; not the rows of the text embedding, which may be more."""

    text_size: int
    speech_token_size: int
    rows: SpeechRows

    @property
    def speech_offset(self) -> int:
        return self.text_size

    @property
    def head_rows(self) -> int:
        """Rows of the speech head that can be sampled, from ``speech_offset`` on."""
        return self.speech_token_size + self.rows.num_scored

    @property
    def stored_rows(self) -> int:
        """Rows of the checkpoint's speech embedding and head, from ``speech_offset`` on."""
        return self.speech_token_size + self.rows.num_stored

    @property
    def stop_ids(self) -> list[int]:
        """The ids that end what is sampled, eos first."""
        ids = range(self.first_special, self.first_special + self.rows.num_scored)
        return sorted(ids, key=lambda merged_id: (merged_id != self.eos, merged_id))

    @property
    def size(self) -> int:
        """Rows of embedding and head, padding included."""
        return -(-(self.speech_offset + len(self.added_tokens())) // PADDING) * PADDING

    def ids(self, space: TokenSpace) -> MergedIds:
        """Between ids of the engines' space and those of the merged checkpoint."""
        return MergedIds(space, self.speech_offset, self.size)

    def added_tokens(self) -> list[str]:
        """The strings of the ids from ``speech_offset`` on, in order; a row without a meaning is named like a speech token."""
        unused = range(self.speech_token_size + len(self.rows.names), self.stored_rows)
        return [*map(speech_token_text, range(self.speech_token_size)), *self.rows.names, *map(speech_token_text, unused)]
