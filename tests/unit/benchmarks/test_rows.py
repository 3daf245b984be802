"""Data sets in all their formats, and the one sentence for each mistake."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.client.audio import read_reference
from bistream.errors import InvalidInputError
from scripts import _dataset
from scripts._dataset import TOKENS_COLUMN, read_manifest, read_rows
from tests.unit.benchmarks.sets import records, write_jsonl

TEXTS = ["Hello.", "Good morning.", "你好。"]


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def with_embedded_audio(folder: Path) -> list[dict[str, Any]]:
    """As the ``datasets`` library stores recordings."""
    rows = records(folder, TEXTS)
    content = (folder / "voice.wav").read_bytes()
    return [{**row, "prompt_audio": {"bytes": content, "path": "voice.wav"}, TOKENS_COLUMN: [1, 2, 6560]} for row in rows]


def test_parquet_with_recordings_inside(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "set.parquet", with_embedded_audio(tmp_path))
    (tmp_path / "recordings").mkdir()
    rows = read_rows(str(path), None, tmp_path / "recordings")
    assert [(row.id, row.target_text, row.prompt_text, row.target_tokens) for row in rows] == [
        (name, text, "A tone.", (1, 2, 6560)) for name, text in zip("abc", TEXTS, strict=True)
    ]
    for row in rows:
        assert row.prompt_audio.parent == tmp_path / "recordings" and len(read_reference(row.prompt_audio)) == 16000
    assert len(read_rows(str(path), None, tmp_path / "recordings", limit=2)) == 2


@pytest.mark.parametrize("form", ["jsonl", "file_name", "parquet", "lst"])
def test_paths_are_relative_to_the_file(form: str, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    rows = records(folder, TEXTS)
    if form == "parquet":
        path = write_parquet(folder / "set.parquet", rows)
    elif form == "lst":
        path = folder / "set.lst"
        path.write_text("\n\n".join("|".join((row["id"], row["prompt_text"], row["prompt_audio"], row["target_text"])) for row in rows))
    else:
        path = folder / "set.jsonl"
        name = "file_name" if form == "file_name" else "prompt_audio"
        lines = ({**{key: value for key, value in row.items() if key != "prompt_audio"}, name: row["prompt_audio"]} for row in rows)
        path.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n", encoding="utf-8")
    for source in (path, folder):
        assert [row.target_text for row in read_rows(str(source), None, tmp_path)] == TEXTS
    assert read_rows(str(path), None, tmp_path)[0].prompt_audio == folder / "voice.wav"


def test_the_split_of_a_folder(tmp_path: Path) -> None:
    rows = records(tmp_path, TEXTS)
    write_parquet(tmp_path / "data/test_zh-00000-of-00002.parquet", [{**rows[0], "prompt_audio": "../voice.wav"}])
    write_parquet(tmp_path / "data/test_zh-00001-of-00002.parquet", [{**rows[1], "prompt_audio": "../voice.wav"}])
    write_parquet(tmp_path / "wenetspeech4tts/0000.parquet", [{**rows[2], "prompt_audio": "../voice.wav"}])
    (tmp_path / "notes.txt").write_text("not a data set")
    assert [row.id for row in read_rows(str(tmp_path), "test_zh", tmp_path)] == ["a", "b"]
    assert [row.id for row in read_rows(str(tmp_path), "wenetspeech4tts", tmp_path)] == ["c"]
    for split in (None, "test_en"):
        with pytest.raises(InvalidInputError, match=r"test_zh, wenetspeech4tts.*--split"):
            read_rows(str(tmp_path), split, tmp_path)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("[1, 2]", "Line 1 .* not a JSON object"),
        ("{", "Line 1 .* not a JSON object"),
        ('{"text": "x"}', "columns text, but not id, prompt_audio, prompt_text, target_text"),
        ('{"id": "a", "prompt_audio": "gone.wav", "prompt_text": "p", "target_text": "t"}', "gone.wav, which does not exist"),
        ('{"id": "a", "prompt_audio": null, "prompt_text": "p", "target_text": "t"}', "no recording"),
        ('{"id": "a", "prompt_audio": "voice.wav", "prompt_text": "p", "target_text": " "}', "no target_text"),
        ('{"id": "../a", "prompt_audio": "voice.wav", "prompt_text": "p", "target_text": "t"}', "not a file name"),
        ('{"id": "a", "prompt_audio": "voice.wav", "prompt_text": "p", "target_text": "t", "target_audio_cosy2_tokens": "x"}', "integers"),
        ("", "no rows"),
    ],
)
def test_a_mistake_is_one_sentence(line: str, words: str, tmp_path: Path) -> None:
    records(tmp_path, [])
    (tmp_path / "set.jsonl").write_text(line, encoding="utf-8")
    with pytest.raises(InvalidInputError, match=words):
        read_rows(str(tmp_path / "set.jsonl"), None, tmp_path)


def test_other_mistakes(tmp_path: Path) -> None:
    twice = write_jsonl(tmp_path, ["Hello."])
    twice.write_text(twice.read_text() * 2)
    with pytest.raises(InvalidInputError, match=r"Line 2 .*'a', which is taken"):
        read_rows(str(twice), None, tmp_path)
    parquet = write_parquet(tmp_path / "set.parquet", [{"id": "a", "audio": "x"}])
    with pytest.raises(InvalidInputError, match="columns id, audio, but not prompt_audio"):
        read_rows(str(parquet), None, tmp_path)
    parquet.write_bytes(b"not Parquet")
    with pytest.raises(InvalidInputError, match="could not be read as Parquet"):
        read_rows(str(parquet), None, tmp_path)
    (tmp_path / "set.csv").write_text("id\n")
    (tmp_path / "empty").mkdir()
    for source, words in (
        ("set.csv", "not a data set"),
        ("empty", "holds no"),
        ("gone/x.jsonl", "does not exist"),
        ("gone", "does not exist"),
    ):
        with pytest.raises(InvalidInputError, match=words):
            read_rows(str(tmp_path / source), None, tmp_path)


@settings(max_examples=50, deadline=None)
@given(line=st.text(max_size=60))
def test_any_manifest_is_read_or_refused(line: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("manifest") / "meta.lst"
    path.write_text(line, encoding="utf-8", errors="replace", newline="")
    with pytest.raises(InvalidInputError):  # the recording never exists
        read_manifest(path)


class Hub:
    """``huggingface_hub`` with one repository. available: whether the network is."""

    def __init__(self, folder: Path, available: bool) -> None:
        self.folder = folder
        self.available = available
        self.patterns: list[str] = []

    def HfApi(self) -> Any:
        def list_repo_files(name: str, repo_type: str) -> list[str]:
            assert (name, repo_type) == ("owner/set", "dataset")
            if not self.available:
                raise OSError("no route to host\nsecond line")
            return [str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file()]

        return SimpleNamespace(list_repo_files=list_repo_files)

    def snapshot_download(self, name: str, repo_type: str, allow_patterns: list[str] | None = None, local_files_only: bool = False) -> str:
        assert (name, repo_type) == ("owner/set", "dataset")
        if local_files_only and not self.folder.exists():
            raise OSError("no route to host\nsecond line")
        self.patterns = allow_patterns or []
        return str(self.folder)


def test_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the split is downloaded; without a network what was downloaded before counts; else there is one sentence."""
    folder, real = tmp_path / "hub", importlib.import_module
    hub = Hub(folder, available=True)
    monkeypatch.setattr(importlib, "import_module", lambda name: hub if name == "huggingface_hub" else real(name))
    write_parquet(folder / "data/test_zh-00000-of-00001.parquet", with_embedded_audio(tmp_path))
    write_parquet(folder / "data/test_en-00000-of-00001.parquet", with_embedded_audio(tmp_path)[:1])
    for available in (True, False):
        hub.available = available
        assert len(read_rows("owner/set", "test_en", tmp_path)) == 1
    hub.available = True
    assert len(read_rows("owner/set", "test_zh", tmp_path)) == 3
    assert hub.patterns == ["data/test_zh-00000-of-00001.parquet"]
    with pytest.raises(InvalidInputError, match="test_en, test_zh"):
        read_rows("owner/set", None, tmp_path)
    hub.available, hub.folder = False, tmp_path / "gone"
    with pytest.raises(InvalidInputError, match=r"owner/set could not be downloaded \(no route to host\); .*HF_TOKEN"):
        read_rows("owner/set", "test_zh", tmp_path)


def test_a_missing_package_is_named() -> None:
    with pytest.raises(InvalidInputError, match=r"Reading Parquet needs a package \(No module named 'no_such_module'\); run: pip"):
        _dataset.optional("no_such_module", "Reading Parquet")
