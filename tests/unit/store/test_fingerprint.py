"""Fingerprints: equal for equal things, a sentence for unequal ones, and hashes of files that tell a new file from a damaged one."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bistream.errors import CheckpointError
from bistream.store import fingerprint
from bistream.store.fingerprint import Fingerprint, file_hash, files_hash, gpus

FACTS = st.dictionaries(st.text("abc", min_size=1, max_size=2), st.text("xyz", max_size=2), max_size=4)


@given(FACTS, FACTS)
def test_the_digest_and_the_differences_agree(first: dict[str, str], second: dict[str, str]) -> None:
    one, two = Fingerprint(first), Fingerprint(second)
    reordered = Fingerprint(dict(reversed(list(first.items()))))
    assert one.digest == reordered.digest and not one.differences(reordered)
    # A fact that is absent reads like one whose value is "none", which no strategy here makes.
    assert (one.digest == two.digest) == (not one.differences(two)) == (not two.differences(one))
    if first != second:
        with pytest.raises(CheckpointError):
            one.require(two, "The thing", "make it again")
    else:
        one.require(two, "The thing", "make it again")


def test_the_sentence_says_what_differs_and_what_to_do() -> None:
    stored = Fingerprint({"GPU": "NVIDIA H100 9.0", "tensorrt_llm": "1.0.0", "dtype": "bfloat16"})
    here = Fingerprint({"GPU": "NVIDIA H200 9.0", "dtype": "bfloat16"})
    with pytest.raises(CheckpointError) as failure:
        stored.require(here, "The engine in engines", "build it again with scripts/build_engine.py")
    assert failure.value.sentence == (
        "The engine in engines was made for something else (GPU NVIDIA H100 9.0, here NVIDIA H200 9.0; tensorrt_llm 1.0.0, here none); "
        "build it again with scripts/build_engine.py."
    )


def save(path: Path, seed: int) -> None:
    torch.save({name: torch.randn(300, 300, generator=torch.Generator().manual_seed(seed)) for name in ("a", "b", "c")}, path)


def test_weights_that_were_saved_anew_have_another_hash_and_damaged_ones_have_not(tmp_path: Path) -> None:
    path = tmp_path / "llm.pt"
    save(path, 1)
    before = file_hash(path)
    save(path, 1)
    assert file_hash(path) == before
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        tensor = archive.getinfo("llm/data/1")
    place = tensor.header_offset + 1000  # beyond the local header
    content[place : place + 1000] = bytes(1000)
    path.write_bytes(content)
    assert file_hash(path) == before
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() == "llm/data/1", "it is damaged"
    save(path, 2)
    assert file_hash(path) != before


@pytest.mark.parametrize("size", [0, 1, fingerprint.WHOLE_BYTES, fingerprint.WHOLE_BYTES + 1, 5 * fingerprint.WHOLE_BYTES])
def test_other_files_are_hashed_by_size_and_samples(tmp_path: Path, size: int) -> None:
    path = tmp_path / "model.onnx"
    content = np.random.default_rng(0).bytes(size)
    path.write_bytes(content)
    before = file_hash(path)
    path.write_bytes(content + b"x")
    assert file_hash(path) != before
    path.write_bytes(np.random.default_rng(1).bytes(size))
    assert (file_hash(path) != before) == (size > 0)
    for place in (0, size // 2, size - 1) if 0 < size <= fingerprint.WHOLE_BYTES else ((0, size - 1) if size else ()):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert file_hash(path) != before


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"flow\.pt cannot be read"):
        files_hash(tmp_path, ["flow.pt"])


def test_gpus_as_the_driver_prints_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus() == ()
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!{sys.executable}\nprint('NVIDIA H200, 9.0\\nNVIDIA H200, 9.0\\nNVIDIA L4, 8.9')\n", encoding="utf-8")
    program.chmod(0o755)
    assert gpus() == ("NVIDIA H200 9.0", "NVIDIA L4 8.9")
    program.write_text(f"#!{sys.executable}\nraise SystemExit(9)\n", encoding="utf-8")
    assert gpus() == ()
