"""The released checkpoints that are known, and what `bistream doctor` says of a directory compared with them."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from bistream.checkpoints import files as checkpoint_files
from bistream.checkpoints.download import RECORD, compare, hash_file
from bistream.commands.checkpoint_report import describe
from bistream.families.family import Family, Release
from bistream.families.registry import FAMILIES


def release_of(model_dir: Path, family: Family) -> Release:
    """The files of this directory as if they were the release."""
    paths = [next(model_dir / name for name in names if (model_dir / name).exists()) for names in family.required_files]
    files = {path.relative_to(model_dir).as_posix(): (path.stat().st_size, hash_file(path)[0]) for path in paths}
    return Release("Tiny", {"huggingface": "FunAudioLLM"}, "0123456789", files)


def release_is(monkeypatch: pytest.MonkeyPatch, model_dir: Path) -> None:
    family = replace(FAMILIES[0], release=release_of(model_dir, FAMILIES[0]))
    monkeypatch.setattr(checkpoint_files, "FAMILIES", (family, *FAMILIES[1:]))


def checksums(model_dir: Path) -> str:
    (line,) = (line for line in describe(model_dir) if line.startswith("checksums: "))
    return line.removeprefix("checksums: ")


WITH_CHECKSUMS = [family for family in FAMILIES if all(sha256 for _, sha256 in family.release.files.values())]


@pytest.mark.parametrize("family", WITH_CHECKSUMS, ids=lambda family: family.name)
def test_every_file_that_the_server_reads_is_known(family: Family) -> None:
    release = family.release
    assert sorted(release.files) == sorted(names[0] for names in family.required_files)
    assert all(re.fullmatch("[0-9a-f]{64}", sha256) and size > 100 for size, sha256 in release.files.values())
    assert len(set(release.files.values())) == len(release.files)
    assert re.fullmatch("[0-9a-f]{40}", release.commit) and release.repo_id() == f"FunAudioLLM/{family.repository}"


def test_where_no_checksum_is_known_the_size_decides(tmp_path: Path) -> None:
    (family,) = set(FAMILIES) - set(WITH_CHECKSUMS)
    required = {names[0] for names in family.required_files}
    assert required - set(family.release.files) == {family.speech_tokenizer_file} and family.release.licence.startswith("CC BY-NC-SA 4.0")
    name, (size, _) = next(iter(family.release.files.items()))
    (tmp_path / name).write_bytes(bytes(size))
    assert compare(tmp_path, family.release).equal == (name,)


def test_only_files_of_the_released_size_are_read(tiny_model_dir: Path) -> None:
    read: list[str] = []
    found = compare(tiny_model_dir, FAMILIES[0].release, read.append)
    assert not found.equal and len(found.different) == len(FAMILIES[0].release.files) and not read


def test_the_release_is_recognised(tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release_is(monkeypatch, tiny_model_dir)
    assert checksums(tiny_model_dir) == "all files are those of FunAudioLLM/Tiny at 0123456"


def test_what_differs_is_named(tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the same size, and one of another."""
    release_is(monkeypatch, tiny_model_dir)
    model_dir = Path(shutil.copytree(tiny_model_dir, tmp_path / "model"))
    path = model_dir / "CosyVoice-BlankEN" / "merges.txt"
    path.write_bytes(path.read_bytes().replace(b"#version: 0.2", b"#version: 0.3"))
    (model_dir / "cosyvoice2.yaml").write_text((model_dir / "cosyvoice2.yaml").read_text(encoding="utf-8") + "# ours\n", encoding="utf-8")
    line = checksums(model_dir)
    assert "llm.pt" in line.split(" are of ")[0]
    assert line.endswith("cosyvoice2.yaml, CosyVoice-BlankEN/merges.txt differ: fine-tuned, another revision, or damaged")


def test_random_weights_are_told(tiny_model_dir: Path) -> None:
    line = checksums(tiny_model_dir)
    assert line.startswith("no file is of FunAudioLLM/CosyVoice2-0.5B at eec1ae6, ") and "llm.pt" in line


def test_the_record_of_a_download_counts_first(tiny_model_dir: Path, tmp_path: Path) -> None:
    model_dir = Path(shutil.copytree(tiny_model_dir, tmp_path / "model"))
    files = {"llm.pt": {"size": (model_dir / "llm.pt").stat().st_size, "sha256": hash_file(model_dir / "llm.pt")[0]}}
    record = {"hub": "huggingface", "repo_id": "somebody/else", "revision": "main", "commit": "abc", "files": files}
    (model_dir / RECORD).write_text(json.dumps(record), encoding="utf-8")
    assert checksums(model_dir) == "all as recorded, of somebody/else at abc"
