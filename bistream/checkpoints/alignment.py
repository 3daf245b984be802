"""Which attention head of a checkpoint's language model follows the text that is spoken: ``alignment.json``, beside the networks.

Written by the training, which guides a head, and by ``bistream doctor --align``, which looks for one. Without the file, or with ``null``,
none is known. Other keys of the file are for people. No torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from bistream.checkpoints.config import LanguageModelConfig
from bistream.errors import CheckpointError

ALIGNMENT_FILE = "alignment.json"
KEY = "text_position_head"
Head = tuple[int, int]  # layer, query head


def read_head(model_dir: str | Path, sizes: LanguageModelConfig) -> Head | None:
    """None: no head is known. Raises ``CheckpointError`` for a file that cannot be understood, and for a head that there is not."""
    path = Path(model_dir) / ALIGNMENT_FILE
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))[KEY]
        return None if found is None else _checked(found, sizes)
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(
            f"{path.name} could not be understood ({type(error).__name__}: {error}); remove it, or write it anew: bistream doctor --align"
        ) from error


def _checked(found: object, sizes: LanguageModelConfig) -> Head:
    if not isinstance(found, list) or len(found) != 2 or not all(isinstance(number, int) for number in found):
        raise ValueError(f"{KEY} is {found!r} and not [layer, head]")
    layer, head = found
    if not (0 <= layer < sizes.num_hidden_layers and 0 <= head < sizes.num_attention_heads):
        raise ValueError(f"{KEY} is {found!r}, but there are {sizes.num_hidden_layers} layers of {sizes.num_attention_heads} heads")
    return layer, head


def write_head(path: Path, head: Head | None, scores: Mapping[str, float] | None = None) -> None:
    """scores: why, for people. Raises ``OSError``."""
    path.write_text(json.dumps({KEY: head, **(scores or {})}) + "\n", encoding="utf-8")
