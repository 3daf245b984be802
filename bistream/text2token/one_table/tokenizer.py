"""The text tokenizer of a one-table model: Qwen2's byte-level BPE, read from ``tokenizer.json``. No user's text becomes an added token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bistream.checkpoints.reader import find_file
from bistream.errors import CheckpointError
from bistream.families.bicodec_tokens import NUM_QWEN2_5, BiCodecTokens
from bistream.text.tokenizer import TextTokenizer

FILE_NAME = "tokenizer.json"


class PlainTextTokenizer(TextTokenizer):
    """Added tokens are written by prompts alone. In a user's text ``<|im_end|>`` is eight characters and a word, and spoken as such."""

    def __init__(self, vocabulary: dict[str, int], merges: list[tuple[str, str]], tokens: BiCodecTokens) -> None:
        super().__init__(vocabulary, merges, tokens.names[:NUM_QWEN2_5])
        self.special_tokens = {}  # that a text may name

    def encode(self, text: str) -> list[int]:
        pieces = self.pre_tokenize(self.normalize(text))
        return [token_id for symbols, _ in pieces for token_id, _ in self.encode_piece(symbols)]

    def find_special(self, text: str, final: bool) -> tuple[int, str | None]:
        """None, anywhere."""
        return len(text), None


def read_tokenizer(model_dir: str | Path, text_directory: str, tokens: BiCodecTokens) -> PlainTextTokenizer:
    """Raises ``CheckpointError`` for a file that is missing or damaged, or that has other added tokens than ``tokens``."""
    path = find_file(model_dir, f"{text_directory}/{FILE_NAME}")
    name = f"{text_directory}/{FILE_NAME}"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        added = {int(one["id"]): str(one["content"]) for one in content["added_tokens"]}
        vocabulary, merges = dict[str, int](content["model"]["vocab"]), [_pair(one) for one in content["model"]["merges"]]
        known = dict(enumerate(tokens.names, start=tokens.first))
        if added != known:
            raise CheckpointError(_difference(name, added, known))
        vocabulary = {entry: number for entry, number in vocabulary.items() if number < tokens.first}
        if len(vocabulary) != tokens.first:
            raise CheckpointError(f"{name} has {len(vocabulary)} entries before its added tokens, not {tokens.first}; {_RESTORE}")
        return PlainTextTokenizer(vocabulary, merges, tokens)
    except CheckpointError:
        raise
    except Exception as error:  # the tokenizer library's own type, and those of contents of another form
        raise CheckpointError(f"{name} could not be interpreted ({type(error).__name__}); {_RESTORE}") from error


_RESTORE = "restore the file from the released model."


def _pair(merge: Any) -> tuple[str, str]:
    """Older files write both symbols as one string."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right


def _difference(name: str, added: dict[int, str], known: dict[int, str]) -> str:
    place = min(number for number in added.keys() | known.keys() if added.get(number) != known.get(number))
    return (
        f"{name} has {len(added):,} added tokens, and the model has {len(known):,}: id {place} is {added.get(place, 'missing')}, not "
        f"{known.get(place, 'a token')}; use the tokenizer that belongs to this model."
    )
