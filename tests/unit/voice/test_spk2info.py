"""Upstream's named speakers in their three forms; anything else is an error that names the file and the speaker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from bistream.errors import CheckpointError
from bistream.voice.spk2info import read_presets, read_spk2info
from tests.unit.voice.voices import assert_same_voice, random_voice

VOICE = random_voice(text="5 6 7")


def spell(ids: Sequence[int]) -> str:
    return " ".join(str(index) for index in ids)


def rows() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    arrays = (VOICE.speech_tokens, VOICE.speech_feat, VOICE.speaker_embedding)
    tokens, features, embedding = (torch.from_numpy(array.copy())[None] for array in arrays)
    return tokens, features, embedding


def triton_entry() -> dict[str, Any]:
    tokens, features, embedding = rows()
    return {"prompt_text": "5 6 7", "speech_token": tokens, "speech_feat": features, "embedding": embedding}


def zero_shot_entry() -> dict[str, Any]:
    tokens, features, embedding = rows()
    entry: dict[str, Any] = {"prompt_text": torch.tensor([[5, 6, 7]], dtype=torch.int32), "prompt_speech_feat": features}
    for stage in ("llm", "flow"):
        entry |= {f"{stage}_prompt_speech_token": tokens, f"{stage}_embedding": embedding}
    for key in ("prompt_text", "prompt_speech_feat", "llm_prompt_speech_token", "flow_prompt_speech_token"):
        entry[f"{key}_len"] = torch.tensor([entry[key].shape[1]], dtype=torch.int32)
    return entry


def save(path: Path, speakers: object) -> Path:
    torch.save(speakers, path / "spk2info.pt")
    return path / "spk2info.pt"


def test_triton_and_zero_shot_forms(tmp_path: Path) -> None:
    voices = read_spk2info(save(tmp_path, {"001": triton_entry(), "anna": zero_shot_entry()}), spell)
    assert list(voices) == ["001", "anna"]
    assert_same_voice(voices["001"], VOICE)
    assert_same_voice(voices["anna"], VOICE)


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"embedding": torch.zeros(1, 1, 192)},
        {"embedding": torch.zeros(2, 192)},
        {"embedding": [0.0] * 192},
        triton_entry() | {"speech_feat": torch.zeros(1, 3, 80)},
        {"speech_feat": torch.zeros(1, 2, 80)},
        [1, 2],
        torch.zeros(3),
    ],
)
def test_unknown_entries(tmp_path: Path, entry: object) -> None:
    with pytest.raises(CheckpointError, match="spk2info.pt: the entry of speaker 'anna'"):
        read_spk2info(save(tmp_path, {"anna": entry}), spell)


class _Trap:
    """Unsafe unpickling would make it create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def test_no_code_of_the_file_is_run(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="more than tensors"):
        read_spk2info(save(tmp_path, {"anna": _Trap(tmp_path / "trapped")}), spell)
    assert not (tmp_path / "trapped").exists()


def test_a_server_leaves_out_what_it_does_not_know(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = save(tmp_path, {"good": triton_entry(), "strange": {"colour": "red"}, "\u4e2d\u6587\u5973": {"embedding": rows()[2]}})
    assert list(read_presets(path, spell)) == ["good", "\u4e2d\u6587\u5973"]
    assert "'strange'" in caplog.text
    path.write_bytes(b"PK damaged")
    with pytest.raises(CheckpointError, match="spk2info.pt"):
        read_presets(path, spell)


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="spk2info.pt does not exist"):
        read_spk2info(tmp_path / "spk2info.pt", spell)
    with pytest.raises(CheckpointError, match="table of speakers"):
        read_spk2info(save(tmp_path, [1]), spell)
    (tmp_path / "spk2info.pt").write_bytes(b"nothing of the kind")
    with pytest.raises(CheckpointError, match="could not be read"):
        read_spk2info(tmp_path / "spk2info.pt", spell)
