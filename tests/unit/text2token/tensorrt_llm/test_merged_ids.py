"""The merged checkpoint tells where its speech rows are, and is refused in one sentence where it cannot be right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional

from bistream.errors import CheckpointError, InvalidInputError
from bistream.families.cosyvoice3 import COSYVOICE3
from bistream.text2token.engine import TokenSpace
from bistream.text2token.tensorrt_llm.merged_ids import MergedIds, padded_scores, read_merged_ids

SPACE = TokenSpace(text_vocab_size=50, speech_token_size=12)
OFFSET, VOCAB = 40, 64
HEAD_ROWS = 12 + 3


def write(folder: Path, bias: torch.Tensor | None = None, **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"vocab_size": VOCAB, "tie_word_embeddings": False, **config}), encoding="utf-8")
    tensors = {"lm_head.weight": torch.zeros(VOCAB, 4, dtype=torch.bfloat16)}
    if bias is not None:
        tensors["lm_head.bias"] = bias
    save_file(tensors, folder / "model.safetensors")
    return folder


def head_bias(first: int = OFFSET, count: int = HEAD_ROWS) -> torch.Tensor:
    bias = torch.full((VOCAB,), float("-inf"), dtype=torch.bfloat16)
    bias[first : first + count] = 0.5
    return bias


def test_the_bias_tells_where_the_speech_rows_are(tmp_path: Path) -> None:
    assert read_merged_ids(write(tmp_path / "merged", head_bias()), SPACE) == MergedIds(SPACE, OFFSET, VOCAB)


def test_the_rows_of_cosyvoice3_have_no_others_behind_them(tmp_path: Path) -> None:
    space = TokenSpace(text_vocab_size=50, speech_token_size=12, rows=COSYVOICE3.rows)
    assert read_merged_ids(write(tmp_path / "merged", head_bias(VOCAB - 16, 16)), space) == MergedIds(space, VOCAB - 16, VOCAB)


def test_a_folder_that_is_not_a_merged_checkpoint_is_refused(tmp_path: Path) -> None:
    for folder in ("", tmp_path / "missing", tmp_path):
        with pytest.raises(CheckpointError, match="'engine_dir' must name"):
            read_merged_ids(folder, SPACE)
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_merged_ids(tmp_path, SPACE)


@pytest.mark.parametrize(
    ("bias", "config", "sentence"),
    [
        (None, {}, "no lm_head.bias"),
        (torch.zeros(VOCAB), {}, "finite in 64 rows"),
        (head_bias(count=HEAD_ROWS - 1), {}, "finite in 14 rows"),
        (torch.cat([head_bias(count=14)[:60], torch.zeros(1), torch.full((3,), float("-inf"))]), {}, "in a run"),
        (head_bias(), {"tie_word_embeddings": True}, "ties its head"),
        (head_bias(), {"vocab_size": OFFSET + HEAD_ROWS + 1}, "ends before"),
    ],
)
def test_a_checkpoint_that_cannot_be_right_is_refused(
    tmp_path: Path, bias: torch.Tensor | None, config: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(CheckpointError, match=sentence):
        read_merged_ids(write(tmp_path / "merged", bias, **config), SPACE)


def test_damaged_weights_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "merged", head_bias())
    (folder / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(CheckpointError, match="could not be read"):
        read_merged_ids(folder, SPACE)


def test_ids_go_there_and_back() -> None:
    merged = MergedIds(SPACE, OFFSET, VOCAB)
    speech = [SPACE.speech_offset + row for row in range(HEAD_ROWS)]
    assert merged.to_merged([0, OFFSET - 1, *speech, SPACE.sos, SPACE.task]) == [0, OFFSET - 1, *range(OFFSET, OFFSET + HEAD_ROWS + 2)]
    assert [merged.from_merged(merged_id) for merged_id in merged.to_merged(speech)] == speech
    assert merged.from_merged(OFFSET - 1) is None and merged.from_merged(OFFSET + HEAD_ROWS) is None
    with pytest.raises(InvalidInputError, match="Text id 40"):
        merged.to_merged([OFFSET])


def test_the_speech_head_gives_the_scores_of_the_merged_head() -> None:
    """Reading the speech rows alone and padding equals the whole matrix with its bias."""
    generator = torch.Generator().manual_seed(1)
    hidden, weight = torch.randn(3, 8, generator=generator), torch.randn(HEAD_ROWS, 8, generator=generator)
    bias = torch.randn(HEAD_ROWS, generator=generator)
    whole = torch.zeros(VOCAB, 8)
    whole[OFFSET : OFFSET + HEAD_ROWS] = weight
    whole_bias = torch.full((VOCAB,), float("-inf"))
    whole_bias[OFFSET : OFFSET + HEAD_ROWS] = bias
    scores = padded_scores(hidden, weight, bias, OFFSET, VOCAB)
    assert scores.shape == (3, VOCAB)
    torch.testing.assert_close(scores, functional.linear(hidden, whole, whole_bias))
    assert int(scores.isfinite().sum()) == 3 * HEAD_ROWS
