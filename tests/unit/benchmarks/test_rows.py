"""Data sets in all their formats, and the one sentence for each mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.client.audio import read_reference
from bistream.errors import InvalidInputError
from bistream.evaluation.dataset import TOKENS_COLUMN, read_manifest, read_rows
from tests.unit.benchmarks.sets import records

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


@given(line=st.text(max_size=60))
def test_any_manifest_is_read_or_refused(line: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("manifest") / "meta.lst"
    path.write_text(line, encoding="utf-8", errors="replace", newline="")
    with pytest.raises(InvalidInputError):  # the recording never exists
        read_manifest(path)
