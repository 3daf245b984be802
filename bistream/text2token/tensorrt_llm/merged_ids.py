"""The merged Hugging Face checkpoint that TensorRT-LLM loads (``engine_dir``), and its ids.

One vocabulary holds text and all else that a sequence can hold, because TensorRT-LLM takes ids only: text ids as they are, then from
``speech_offset`` on what follows them in ``TokenSpace``, in its order (scripts/convert_checkpoint.py). The head has a bias, minus infinity
for every id that must not be sampled, so the bias itself tells where the speech rows lie.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.nn import functional

from bistream.errors import CheckpointError, InvalidInputError
from bistream.text2token.engine import TokenSpace

HEAD_BIAS = "lm_head.bias"
WEIGHTS = "model.safetensors"
CONVERT = "make it again with scripts/convert_checkpoint.py"


@dataclass(frozen=True)
class MergedIds:
    """speech_offset: merged id of the first speech token. vocab_size: rows of the embedding, padding included."""

    space: TokenSpace
    speech_offset: int
    vocab_size: int

    @property
    def num_head_rows(self) -> int:
        return self.space.speech_token_size + len(self.space.specials)

    def to_merged(self, ids: Iterable[int]) -> list[int]:
        """Raises ``InvalidInputError`` for a text id that the merged vocabulary has no place for."""
        merged = []
        for token_id in ids:
            if token_id < self.space.speech_offset:
                if token_id >= self.speech_offset:
                    raise InvalidInputError(f"Text id {token_id} is not in the merged checkpoint; use the tokenizer that it was made with.")
                merged.append(token_id)
            else:
                merged.append(token_id - self.space.speech_offset + self.speech_offset)
        return merged

    def from_merged(self, merged_id: int) -> int | None:
        """The id of a row of the speech head in ``TokenSpace``; None for any other id, which the head cannot produce."""
        row = merged_id - self.speech_offset
        return self.space.speech_offset + row if 0 <= row < self.num_head_rows else None


def padded_scores(hidden: Tensor, weight: Tensor, bias: Tensor, first: int, vocab_size: int) -> Tensor:
    """The speech head: hidden [n, H], weight [R, H], bias [R] -> scores [n, vocab_size], minus infinity outside rows ``first`` to
    ``first + R - 1``."""
    scores = functional.linear(hidden, weight, bias)
    return functional.pad(scores, (first, vocab_size - first - weight.shape[0]), value=float("-inf"))


def read_merged_ids(engine_dir: str | Path, space: TokenSpace) -> MergedIds:
    """Read configuration and head bias. Raises ``CheckpointError`` naming what is missing or does not fit ``space``."""
    folder = Path(engine_dir)
    if not engine_dir or not (folder / "config.json").is_file():
        raise CheckpointError(
            "Parameter 'engine_dir' must name the merged checkpoint for TensorRT-LLM, a folder with config.json; "
            "make one with scripts/convert_checkpoint.py (stage 1 of run.sh)."
        )
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        vocab_size, is_tied = int(config["vocab_size"]), bool(config.get("tie_word_embeddings", False))
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"config.json of the merged checkpoint could not be read ({error}); {CONVERT}.") from error
    if is_tied:
        raise CheckpointError(f"The merged checkpoint ties its head to its embedding, so it has no speech head; {CONVERT}.")
    speech_offset = _first_speech_row(_read_head_bias(folder), space)
    if speech_offset + space.size - space.speech_offset > vocab_size:
        raise CheckpointError(f"The merged checkpoint's vocabulary of {vocab_size} ids ends before its special ids; {CONVERT}.")
    return MergedIds(space, speech_offset, vocab_size)


def _first_speech_row(bias: Tensor, space: TokenSpace) -> int:
    """Where the finite values of the bias begin. They must be one run of the length of the speech head."""
    rows = bias.float().isfinite().nonzero().flatten().tolist()
    expected = space.speech_token_size + len(space.specials)
    if len(rows) != expected or rows[-1] - rows[0] != expected - 1:
        raise CheckpointError(
            f"The head bias of the merged checkpoint is finite in {len(rows)} rows, but the model has {expected} speech rows in a run; "
            f"{CONVERT} from this model_dir."
        )
    return int(rows[0])


def _read_head_bias(folder: Path) -> Tensor:
    try:
        with safe_open(folder / WEIGHTS, framework="pt") as weights:
            if HEAD_BIAS not in weights.keys():
                raise CheckpointError(f"The merged checkpoint has no {HEAD_BIAS}, without which its head would sample text ids; {CONVERT}.")
            bias: Tensor = weights.get_tensor(HEAD_BIAS)
            return bias
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"The weights of the merged checkpoint could not be read ({type(error).__name__}); {CONVERT}.") from error
