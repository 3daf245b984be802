"""Where the server's own log goes, and that it does not fill the disk."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from bistream.keeper import server_log
from bistream.keeper.server_log import ServerLog
from scripts.serve import log_path, parse_arguments


def test_a_full_file_is_kept_once_and_no_line_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_log, "MOST_BYTES", 100)
    path = tmp_path / "server.log"
    lines = [f"line {number:02d}\n" for number in range(20)]  # 8 bytes each
    ServerLog(path).copy(io.StringIO("".join(lines)))
    assert path.with_name("server.log.1").read_text() == "".join(lines[:13])
    assert path.read_text() == "".join(lines[13:])
    ServerLog(path).copy(io.StringIO("".join(lines)))
    assert path.with_name("server.log.1").read_text() == "".join(lines[6:19]), "what was there counts"
    assert path.read_text() == "".join(lines[19:])
    assert sorted(item.name for item in tmp_path.iterdir()) == ["server.log", "server.log.1"]


def test_every_line_is_shown_to_who_watches(tmp_path: Path) -> None:
    seen: list[str] = []
    ServerLog(tmp_path / "server.log", seen.append).copy(io.StringIO("one\ntwo\n"))
    assert seen == ["one\n", "two\n"]


@pytest.mark.parametrize(
    ("words", "name"), [((), "repositories/server.log"), (("--log-file", "-"), None), (("--log-file", "x.log"), "x.log")], ids=str
)
def test_the_log_is_a_file_unless_told_otherwise(words: tuple[str, ...], name: str | None, tmp_path: Path) -> None:
    options = parse_arguments(["--model-repository", str(tmp_path / "repositories/model_repo"), *words])
    found = log_path(options)
    assert found == (None if name is None else tmp_path / name if "/" in name else Path(name))
