"""The text tokenizer, a byte-level BPE with Qwen2's splitting in the files of ``CosyVoice-BlankEN``, and the ids of the training text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer, models, trainers

from bistream.families.cosyvoice2 import ADDED_TOKENS, BASE_TOKENS, TEXT_DIRECTORY
from bistream.text.tokenizer import byte_of_symbol, make_pre_tokenizer
from scripts._tokenizer_files import byte_symbols, tokenizer_config

DROPOUT = 0.1  # merges left out at random in training, so that rare words are also seen in small pieces
LONGEST = 6  # characters of a symbol, the blank before a word among them: longer ones are rare (log.md)
DROPOUT_CUTS = 3  # ways in which a text is cut with dropout


def write_tokenizer(texts: Sequence[str], directory: Path, entries: int) -> None:
    """Learn ``entries`` symbols (special tokens not counted) and write vocab.json, merges.txt and tokenizer_config.json."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = make_pre_tokenizer()
    trainer = trainers.BpeTrainer(vocab_size=entries, initial_alphabet=byte_symbols(), max_token_length=LONGEST, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    merges = [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]]
    vocabulary = dict(sorted(model["vocab"].items(), key=lambda item: item[1]))
    for number in range(entries - len(vocabulary)):  # a small text has too few pairs
        vocabulary[f"<unused_{number}>"] = len(vocabulary)
    target = directory / TEXT_DIRECTORY
    target.mkdir(parents=True, exist_ok=True)
    (target / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8", newline="\n")
    lines = ["#version: 0.2\n", *(f"{left} {right}\n" for left, right in merges)]
    (target / "merges.txt").write_text("".join(lines), encoding="utf-8", newline="\n")
    settings = json.dumps(tokenizer_config(entries), indent=2, ensure_ascii=False) + "\n"
    (target / "tokenizer_config.json").write_text(settings, encoding="utf-8", newline="\n")


def num_special_tokens() -> int:
    return len(BASE_TOKENS) + len(ADDED_TOKENS)


class TextIds:
    """Ids of every training text, alone or after a blank, as the server cuts it or in one of several ways with dropout.

    pieces: the bytes of each id; those of special tokens are empty.
    """

    def __init__(self, texts: Sequence[str], directory: Path) -> None:
        folder = directory / TEXT_DIRECTORY
        self._variants: dict[tuple[bool, int], list[list[int]]] = {}
        for cut in range(DROPOUT_CUTS + 1):
            dropout = DROPOUT if cut else None
            model = models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"), dropout=dropout)
            tokenizer = Tokenizer(model)
            tokenizer.pre_tokenizer = make_pre_tokenizer()
            for after_blank in (False, True):
                encoded = tokenizer.encode_batch([" " * after_blank + text for text in texts], add_special_tokens=False)
                self._variants[after_blank, cut] = [entry.ids for entry in encoded]
        vocabulary = tokenizer.get_vocab()
        self.pieces = [b""] * (len(vocabulary) + num_special_tokens())
        values = byte_of_symbol()
        for piece, index in vocabulary.items():
            self.pieces[index] = bytes(values[symbol] for symbol in piece)

    def __call__(self, text: int, after_blank: bool, cut: int = 0) -> list[int]:
        """cut: 0 as the server does it, 1 to ``DROPOUT_CUTS`` with dropout."""
        return self._variants[after_blank, cut][text]
