"""Limits on processes and threads, read from made-up /proc and /sys/fs/cgroup folders."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from bistream.keeper.thread_limits import cgroup_limit, user_limit


def group(folder: Path, limit: str, used: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pids.max").write_text(f"{limit}\n", encoding="ascii")
    (folder / "pids.current").write_text(f"{used}\n", encoding="ascii")


def member_of(proc: Path, *lines: str) -> None:
    (proc / "self").mkdir(parents=True, exist_ok=True)
    (proc / "self/cgroup").write_text("\n".join(lines) + "\n", encoding="ascii")


@pytest.mark.parametrize(("line", "root"), [("0::/a/b", ""), ("7:pids:/a/b", "pids")], ids=["version 2", "version 1"])
def test_the_tightest_group_counts(tmp_path: Path, line: str, root: str) -> None:
    member_of(tmp_path, "5:cpu:/elsewhere", line)
    group(tmp_path / root / "a/b", "900", used=100)
    group(tmp_path / root / "a", "1000", used=700)
    group(tmp_path / root, "max", used=5000)
    limit = cgroup_limit(tmp_path, tmp_path)
    assert limit is not None and (limit.limit, limit.left) == (1000, 300)
    assert "--pids-limit=1200" in limit.remedy(500)


def test_in_a_container_the_path_may_be_the_hosts(tmp_path: Path) -> None:
    """The folders of the host do not exist there; the container's own group is at the root."""
    member_of(tmp_path, "7:pids:/docker/0123456789")
    group(tmp_path / "pids", "64", used=70)
    limit = cgroup_limit(tmp_path, tmp_path)
    assert limit is not None and (limit.limit, limit.left) == (64, 0)


@pytest.mark.parametrize("lines", [[], ["0::/"], ["5:cpu:/a"]])
def test_without_a_limit_there_is_none(tmp_path: Path, lines: list[str]) -> None:
    if lines:
        member_of(tmp_path, *lines)
    group(tmp_path, "max")
    assert cgroup_limit(tmp_path, tmp_path) is None


def process(proc: Path, number: int, user: int, threads: int) -> None:
    (proc / str(number)).mkdir(parents=True)
    (proc / str(number) / "status").write_text(f"Name:\tx: y\nUid:\t{user}\t0\t0\t0\nThreads:\t{threads}\n", encoding="ascii")


def as_user(monkeypatch: pytest.MonkeyPatch, user: int, limit: int) -> None:
    monkeypatch.setattr(os, "getuid", lambda: user)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, limit))


def test_the_threads_of_the_user_count_against_his_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_user(monkeypatch, 1000, 1024)
    process(tmp_path, 1, 1000, 20)
    process(tmp_path, 2, 1000, 4)
    process(tmp_path, 3, 0, 500)
    (tmp_path / "4").mkdir()  # ended meanwhile
    limit = user_limit(tmp_path)
    assert limit is not None and (limit.limit, limit.left) == (1024, 1000)
    assert "ulimit -u 1224" in limit.remedy(1200)


@pytest.mark.parametrize(("user_map", "applies"), [("0 0 4294967295", False), ("0 1000 1", True)], ids=["root", "root of a user namespace"])
def test_root_has_no_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user_map: str, applies: bool) -> None:
    as_user(monkeypatch, 0, 10)
    (tmp_path / "self").mkdir()
    (tmp_path / "self/uid_map").write_text(user_map, encoding="ascii")
    assert (user_limit(tmp_path) is not None) == applies


def test_no_limit_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_user(monkeypatch, 1000, resource.RLIM_INFINITY)
    assert user_limit(tmp_path) is None
