"""Where the server's own log goes, and that it does not fill the disk."""

from __future__ import annotations

import stat
from contextlib import closing
from pathlib import Path

import pytest

from bistream.keeper import server_log
from bistream.keeper.server_log import LogFile
from scripts.serve import log_path, parse_arguments


def test_a_full_file_is_kept_once_and_no_line_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_log, "MOST_BYTES", 100)
    lines = [f"line {number:02d}\n" for number in range(40)]  # 8 bytes each
    for start in (0, 20):  # of two servers; what was there counts
        with closing(LogFile(tmp_path / "folder/server.log")) as file:
            for line in lines[start : start + 20]:
                file.write(line)
    kept, newest = ((tmp_path / "folder" / name).read_text() for name in ("server.log.1", "server.log"))
    assert "".join(lines).endswith(kept + newest) and 0 < len(newest) <= 100 and 90 <= len(kept) <= 100
    assert sorted(item.name for item in (tmp_path / "folder").iterdir()) == ["server.log", "server.log.1"]
    assert stat.S_IMODE((tmp_path / "folder/server.log").stat().st_mode) & 0o037 == 0


@pytest.mark.parametrize(
    ("words", "name"), [((), "repositories/server.log"), (("--log-file", "-"), None), (("--log-file", "x.log"), "x.log")], ids=str
)
def test_the_log_is_a_file_unless_told_otherwise(words: tuple[str, ...], name: str | None, tmp_path: Path) -> None:
    options = parse_arguments(["--model-repository", str(tmp_path / "repositories/model_repo"), *words])
    found = log_path(options)
    assert found == (None if name is None else tmp_path / name if "/" in name else Path(name))
