"""The ready file: whole or absent, and one sentence where it cannot be written."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from bistream.keeper.host import ServerError
from bistream.keeper.ready_file import ReadyFile

ADDRESSES = {"grpc": "127.0.0.1:1", "http": "127.0.0.1:2"}


def test_it_holds_the_addresses_until_it_is_withdrawn(tmp_path: Path) -> None:
    ready = ReadyFile(tmp_path / "ready.json")
    assert list(tmp_path.iterdir()) == []
    for _ in range(2):
        ready.announce(ADDRESSES)
        assert [path.name for path in tmp_path.iterdir()] == ["ready.json"]
        assert json.loads((tmp_path / "ready.json").read_text(encoding="utf-8")) == ADDRESSES
        assert stat.S_IMODE((tmp_path / "ready.json").stat().st_mode) & 0o133 == 0
        ready.withdraw()
        ready.withdraw()
        assert list(tmp_path.iterdir()) == []


def test_the_file_of_a_killed_keeper_is_removed_before_the_start(tmp_path: Path) -> None:
    (tmp_path / "ready.json").write_text("{}", encoding="utf-8")
    ReadyFile(tmp_path / "ready.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["missing/ready.json", "file/ready.json", "folder", "pipe"])
def test_a_place_that_cannot_hold_it_is_an_error_before_the_start(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ServerError, match=r"ready file .* (cannot be written \(.+\)|is not a file); .*--ready-file"):
        ReadyFile(tmp_path / place)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder", "pipe"]


def test_a_server_goes_on_without_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    ready = ReadyFile(folder / "ready.json")
    folder.rmdir()
    ready.announce(ADDRESSES)
    assert "cannot be written" in caplog.text
