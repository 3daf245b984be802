"""The special tokens of each family's vocabulary, and how they are found in a text that is still growing. Imports no tokenizer library."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from bistream.family import TokenizerVersion
from bistream.text.phoneme_tokens import PHONEME_TOKENS

# Qwen2's own: https://huggingface.co/Qwen/Qwen2-0.5B (tokenizer_config.json), ids 151643..151645 of the released model.
BASE_SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# Added by CosyVoice2 in this order (cosyvoice/tokenizer/tokenizer.py), ids 151646..151662 of the released model.
ADDED_SPECIAL_TOKENS = (
    "<|endofprompt|>",
    "[breath]",
    "<strong>",
    "</strong>",
    "[noise]",
    "[laughter]",
    "[cough]",
    "[clucking]",
    "[accent]",
    "[quick_breath]",
    "<laughter>",
    "</laughter>",
    "[hissing]",
    "[sigh]",
    "[vocalized-noise]",
    "[lipsmack]",
    "[mn]",
)
END_OF_SYSTEM = "<|endofsystem|>"
# By tokenizer: those that follow Qwen2's own. CosyVoice3 has CosyVoice2's, and its own after them.
ADDED_TOKENS: Mapping[TokenizerVersion, tuple[str, ...]] = {
    "cosyvoice2": ADDED_SPECIAL_TOKENS,
    "cosyvoice3": (*ADDED_SPECIAL_TOKENS, END_OF_SYSTEM, *PHONEME_TOKENS),
}
# Of all families: CosyVoice2 has no <|endofsystem|>, and nobody sends it there as text.
SPECIAL_TOKENS = (*BASE_SPECIAL_TOKENS, *ADDED_SPECIAL_TOKENS, END_OF_SYSTEM)
SPOKEN_TOKENS = frozenset(PHONEME_TOKENS)  # special tokens that stand for speech as letters do
END_OF_PROMPT = "<|endofprompt|>"  # ends an instruction
# Those in brackets stand for a sound; these only mark a place or change how the words between them are spoken.
MARKS = frozenset(token for token in SPECIAL_TOKENS if token.startswith("<")) | {"[accent]"}


class SpecialTokenFinder:
    """Matches tokens literally, anywhere in a text. Immutable."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._tokens = tuple(tokens)
        first_characters = sorted({token[0] for token in self._tokens})
        self._starts = re.compile(f"[{re.escape(''.join(first_characters))}]")

    def find(self, text: str, final: bool) -> tuple[int, str | None]:
        """Leftmost special token of a text that may continue (``final``: that is complete): (index, the token).

        If no token is certain, the token is None and the index is that of the first character that may begin one, or the
        length of the text. Of several tokens at the same index the longest wins.
        """
        for match in self._starts.finditer(text):
            index = match.start()
            if not final and any(len(token) > len(text) - index and token.startswith(text[index:]) for token in self._tokens):
                return index, None
            found = [token for token in self._tokens if text.startswith(token, index)]
            if found:
                return index, max(found, key=len)
        return len(text), None
