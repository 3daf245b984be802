"""Files of ``torch.save`` without torch: what torch reads from them; what is not plain tensors is refused and not run."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bistream.voice import spk2info
from bistream.voice.spk2info import read_spk2info
from bistream.voice.tensor_file import UnknownContentError, read_tensors
from tests.unit.voice.test_spk2info import save, spell, triton_entry

BASE = torch.arange(60, dtype=torch.float32).reshape(3, 4, 5)
TENSORS = {
    **{str(kind): BASE.to(kind) for kind in (torch.float64, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)},
    "view": BASE[1:, ::2, 1:4],
    "turned": BASE.permute(2, 0, 1),
    "expanded": BASE[:, :1].expand(3, 7, 5),
    "scalar": torch.tensor(3.0),
    "empty": torch.zeros(0, 80),
    "bool": BASE > 7,
    "needs grad": BASE.clone().requires_grad_(),
}


def test_arrays_equal_what_torch_reads(tmp_path: Path) -> None:
    torch.save({"of tensors": TENSORS, "list": [BASE, "text", 4, None]}, tmp_path / "x.pt")
    found = read_tensors(tmp_path / "x.pt")
    assert found["list"][1:] == ["text", 4, None]
    for name, tensor in TENSORS.items():
        array = found["of tensors"][name]
        expected = tensor.detach().numpy()
        assert array.dtype == expected.dtype and array.shape == expected.shape and np.array_equal(array, expected), name


@pytest.mark.parametrize(
    ("shape", "strides", "offset"), [((9,), (1,), 0), ((4,), (3,), 0), ((2,), (1,), 7), ((2,), (-1,), 3), ((2,), (1,), -1)]
)
def test_a_tensor_beyond_its_storage_is_refused(shape: tuple[int, ...], strides: tuple[int, ...], offset: int, tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save(torch.arange(8.0), path)
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    name = next(name for name in parts if name.endswith("data.pkl"))
    numbers = [b"J" + number.to_bytes(4, "little", signed=True) for number in (offset, shape[0], strides[0])]  # BININT in place of BININT1
    old = re.compile(rb"K\x00K\x08\x85(q.)K\x01\x85", re.DOTALL)  # offset 0, shape (8,), strides (1,)
    parts[name], found = old.subn(lambda match: numbers[0] + numbers[1] + b"\x85" + match[1] + numbers[2] + b"\x85", parts[name])
    assert found == 1
    with zipfile.ZipFile(path, "w") as archive:
        for part, data in parts.items():
            archive.writestr(part, data)
    with pytest.raises(UnknownContentError, match="larger than its storage"):
        read_tensors(path)


def test_a_file_of_an_old_torch_is_read_with_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []
    load = spk2info._read_with_torch

    def read(path: Path) -> Any:
        asked.append(path)
        return load(path)

    monkeypatch.setattr(spk2info, "_read_with_torch", read)
    torch.save({"a": triton_entry()}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    torch.save({"a": triton_entry() | {"embedding": triton_entry()["embedding"].bfloat16()}}, tmp_path / "bfloat16.pt")
    for path in (tmp_path / "old.pt", tmp_path / "bfloat16.pt"):
        voice = read_spk2info(path, spell)["a"]
        assert voice.speech_feat.dtype == voice.speaker_embedding.dtype == np.float32
    assert len(asked) == 2
    read_spk2info(save(tmp_path, {"a": triton_entry()}), spell)
    assert len(asked) == 2


def test_presets_are_read_without_torch(tmp_path: Path) -> None:
    """A front model has no other need of it."""
    save(tmp_path, {"a": triton_entry(), "b": {"embedding": triton_entry()["embedding"]}})
    code = (
        "import sys\nfrom bistream.config import RuntimeConfig\nfrom bistream.sessions.named_voices import NamedVoices\n"
        "from bistream.voice.registry import VoiceRegistry\nfrom pathlib import Path\n"
        "print(NamedVoices(VoiceRegistry(Path(sys.argv[1]) / 'voices'), sys.argv[1]).preset_ids(), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "['a', 'b'] False", done.stderr
