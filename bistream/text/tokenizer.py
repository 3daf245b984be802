"""Qwen2's byte-level BPE with the family's special tokens: text in, text ids out. Used by ``text_in`` and the service.

Files of the family's ``text_directory``: ``{vocab.json,merges.txt,tokenizer_config.json}``. Special tokens are matched literally and cut
out; the text between them is normalised (NFC) and split by the pre-tokenizer's pattern, and each piece is encoded
separately. Every step is a public method, because ``text_in`` runs them on text that is still growing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from bistream.checkpoints.files import family_of
from bistream.errors import CheckpointError
from bistream.families.family import Family
from bistream.text.certain_tokens import Encoded, Vocabulary, certain_tokens
from bistream.text.special_tokens import SPOKEN_TOKENS, SpecialTokenFinder

# Qwen2's pattern. A match depends on the text from its start on, never on preceding text.
PRE_TOKENIZER_PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_DOWNLOAD = "check model_dir or download the model again."


def make_pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    """Splits normalised text by Qwen2's pattern and maps every byte of a piece to one symbol."""
    split = pre_tokenizers.Split(Regex(PRE_TOKENIZER_PATTERN), behavior="isolated", invert=False)
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def byte_of_symbol() -> dict[str, int]:
    """The 256 symbols that stand for bytes, in the order of GPT-2's (and so Qwen2's) vocabulary ids 0..255, and the byte of each."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = sorted(set(range(256)) - set(printable))
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTE_OF_SYMBOL = byte_of_symbol()


class TextTokenizer:
    """Immutable; safe to use from several threads.

    special_tokens: string -> id of every special token; matched literally anywhere in a text.
    spoken_tokens: those of them that stand for speech, as letters do.
    size: the largest id plus 1.
    """

    def __init__(self, vocabulary: dict[str, int], merges: list[tuple[str, str]], special_tokens: tuple[str, ...]) -> None:
        self._model = BPE(vocab=vocabulary, merges=merges)
        self._entries = Vocabulary([*pre_tokenizers.ByteLevel.alphabet(), *(left + right for left, right in merges)])
        self._normalizer = normalizers.NFC()
        self._pre_tokenizer = make_pre_tokenizer()
        self._tokenizer = Tokenizer(self._model)
        self._tokenizer.normalizer = self._normalizer
        self._tokenizer.pre_tokenizer = self._pre_tokenizer
        self._tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special_tokens])
        ids = self._tokenizer.get_vocab(with_added_tokens=True)
        self.special_tokens: dict[str, int] = {token: ids[token] for token in special_tokens}
        self._special_ids = frozenset(self.special_tokens.values())
        self.spoken_tokens = SPOKEN_TOKENS.intersection(special_tokens)
        self._finder = SpecialTokenFinder(special_tokens)
        self.size: int = max(ids.values()) + 1

    @classmethod
    def from_model_dir(cls, model_dir: str | Path) -> TextTokenizer:
        """Read the tokenizer of a model directory. Raises ``CheckpointError`` naming a missing or damaged file."""
        family = family_of(model_dir)
        directory = Path(model_dir) / family.text_directory
        vocabulary = _read_vocabulary(directory)
        merges = _read_merges(directory, vocabulary)
        declared = _read_special_tokens(directory, family, len(vocabulary))
        added = tuple(token for token in family.added_tokens if token not in declared.values())
        tokenizer = cls(vocabulary, merges, (*declared.values(), *added))
        for token_id, token in declared.items():
            if tokenizer.special_tokens[token] != token_id:
                raise CheckpointError(
                    f"{directory.name}/tokenizer_config.json gives {token} the id {token_id}, but after the {len(vocabulary)} entries of "
                    f"vocab.json it is {tokenizer.special_tokens[token]}; {_DOWNLOAD}"
                )
        return tokenizer

    def encode(self, text: str) -> list[int]:
        """Ids of a whole text, without added special tokens."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids that stand for whole characters, special tokens included."""
        symbols = [symbol for token_id in ids if (symbol := self._tokenizer.id_to_token(token_id)) is not None]
        if len(symbols) < len(ids):
            raise ValueError("an id is not in the vocabulary")
        return str(decoders.ByteLevel().decode(symbols))

    def bytes_of(self, token_id: int) -> bytes:
        """The UTF-8 of a token, which may begin or end inside a character; empty for a special token."""
        symbols = "" if token_id in self._special_ids else self._tokenizer.id_to_token(token_id) or ""
        return bytes(_BYTE_OF_SYMBOL[symbol] for symbol in symbols)

    def find_special(self, text: str, final: bool) -> tuple[int, str | None]:
        """As ``SpecialTokenFinder.find``, with every special token that the model directory declares."""
        return self._finder.find(text, final)

    def normalize(self, text: str) -> str:
        return str(self._normalizer.normalize_str(text))

    def pre_tokenize(self, normalized: str) -> list[tuple[str, int]]:
        """Pieces of a text without special tokens: (piece as byte symbols, index of the first character after it)."""
        return [(symbols, end) for symbols, (_, end) in self._pre_tokenizer.pre_tokenize_str(normalized)]

    def encode_piece(self, symbols: str) -> list[Encoded]:
        """Ids of one piece of ``pre_tokenize``, each with the number of UTF-8 bytes that it covers."""
        return [(token.id, len(token.value)) for token in self._model.tokenize(symbols)]

    def encode_open_piece(self, symbols: str) -> list[Encoded]:
        """The first tokens of a piece, as in ``encode_piece``, that remain the same however the piece goes on."""
        return certain_tokens(self._entries, self.encode_piece, symbols)


def _read_text(directory: Path, name: str) -> str:
    path = directory / name
    if not path.is_file():
        raise CheckpointError(f"{directory.name}/{name} is missing from the model directory; {_DOWNLOAD}")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged(directory, name, type(error).__name__) from error


def _damaged(directory: Path, name: str, what: str) -> CheckpointError:
    return CheckpointError(f"{directory.name}/{name} is damaged ({what}); {_DOWNLOAD}")


def _read_json_object(directory: Path, name: str) -> dict[str, Any]:
    try:
        value = json.loads(_read_text(directory, name))
    except json.JSONDecodeError as error:
        raise _damaged(directory, name, f"invalid JSON at line {error.lineno}") from error
    if not isinstance(value, dict):
        raise _damaged(directory, name, "not a JSON object")
    return value


def _read_vocabulary(directory: Path) -> dict[str, int]:
    vocabulary = _read_json_object(directory, "vocab.json")
    if sorted(vocabulary.values(), key=repr) != sorted(range(len(vocabulary)), key=repr):
        raise _damaged(directory, "vocab.json", "its ids are not 0, 1, 2, ...")
    missing = [symbol for symbol in pre_tokenizers.ByteLevel.alphabet() if symbol not in vocabulary]
    if missing:
        raise _damaged(directory, "vocab.json", f"{len(missing)} of the 256 byte symbols are missing")
    return vocabulary


def _read_merges(directory: Path, vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    merges: list[tuple[str, str]] = []
    # Only "\n" ends a line: other Unicode line separators may be part of a symbol.
    for number, line in enumerate(_read_text(directory, "merges.txt").split("\n"), start=1):
        if not line or (number == 1 and line.startswith("#version:")):
            continue
        parts = line.split(" ")
        if len(parts) != 2:
            raise _damaged(directory, "merges.txt", f"line {number} is not a pair")
        left, right = parts
        if left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
            raise _damaged(directory, "merges.txt", f"line {number} uses an entry that vocab.json lacks")
        merges.append((left, right))
    return merges


def _read_special_tokens(directory: Path, family: Family, vocabulary_size: int) -> dict[int, str]:
    """id -> string of the special tokens that the directory declares, by ascending id; the family's if it declares none."""
    declared = _read_json_object(directory, "tokenizer_config.json").get("added_tokens_decoder")
    if declared is None:
        return {vocabulary_size + index: token for index, token in enumerate(family.base_tokens)}
    try:
        tokens = {int(token_id): str(entry["content"]) for token_id, entry in declared.items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _damaged(directory, "tokenizer_config.json", "added_tokens_decoder is not a table of ids") from error
    return dict(sorted(tokens.items()))
