"""What the server needs of the host, computed from the models' settings, and the sentence for each thing that is short."""

from __future__ import annotations

import dataclasses
import logging
import re
import resource
import sys
from pathlib import Path

import pytest

from bistream.keeper import host_limits
from bistream.keeper.host import ServerError
from bistream.keeper.host_limits import (
    MIB,
    HostNeeds,
    HostRoom,
    Need,
    cgroup_threads,
    check_paths,
    host_needs,
    host_room,
    prepare_host,
    shortages,
)
from bistream.keeper.server_process import BACKEND_THREADS, ServerSettings
from bistream.processes.limits import NO_LIMIT, raise_soft_limit
from scripts.make_model_repo import make, model_names, model_values

ROOT = Path(__file__).resolve().parents[3]
NEEDS = HostNeeds(Need(100, 500), Need(1000, 1200), Need(6 * MIB, 40 * MIB))
PLENTY = HostRoom(NO_LIMIT, NO_LIMIT, NO_LIMIT, NO_LIMIT)


def repository(folder: Path, **settings: str) -> Path:
    make(folder / "repository", model_values(model_names(), {"model_dir": "x", **settings}, "torch"))
    return folder / "repository"


def limited(left: int) -> HostRoom:
    return dataclasses.replace(PLENTY, threads=left, thread_limit=5000)


def test_needs_of_the_default_settings_cover_what_was_measured(tmp_path: Path) -> None:
    """An idle server on two cores, num_threads=1: 238 threads of the server, 69 of its models, 4 of the keeper; 70 files; 6 MiB."""
    needs = host_needs(repository(tmp_path, num_threads="1"), processors=2)
    assert host_needs(tmp_path / "repository", processors=128).threads.to_start == needs.threads.to_start  # no refusal for an estimate
    assert 311 <= needs.threads.to_start <= 400
    assert 70 < needs.files.to_start <= 256
    assert needs.shared_memory.to_start == 6 * MIB
    for need in dataclasses.astuple(needs):
        assert need[0] <= need[1]


def test_needs_grow_with_sessions_and_instances(tmp_path: Path) -> None:
    few, many, instances = (
        host_needs(repository(tmp_path / str(number), **settings), processors=2)
        for number, settings in enumerate(({}, {"max_sessions": "256"}, {"cosyvoice2.bls_instance_num": "4"}))
    )
    assert many.files.full == few.files.full + 4 * 192
    assert many.threads == few.threads, "a session has none of its own"
    assert many.shared_memory.full - few.shared_memory.full == 192 * 30 * 16000 * 4
    assert instances.threads.to_start == few.threads.to_start + 3 * (BACKEND_THREADS + 16)
    assert instances.shared_memory.to_start == few.shared_memory.to_start + 3 * MIB


@pytest.mark.parametrize("value", ["inf", ""])
def test_a_setting_that_is_no_number_is_left_to_the_model_that_reads_it(tmp_path: Path, value: str) -> None:
    for config in repository(tmp_path).glob("*/config.pbtxt"):
        text = config.read_text(encoding="utf-8")
        config.write_text(
            re.sub(
                r'(max_sessions|max_reference_s|num_threads)" value { string_value: "[^"]*', rf'\1" value {{ string_value: "{value}', text
            ),
            encoding="utf-8",
        )
    needs = host_needs(tmp_path / "repository", processors=2)
    assert needs.files.full == 256 and needs.threads.to_start > 0


def test_a_host_with_enough_of_everything_is_not_mentioned() -> None:
    assert shortages(NEEDS, PLENTY) == []
    assert shortages(NEEDS, HostRoom(500, 1200, 5000, 40 * MIB)) == []


@pytest.mark.parametrize(
    ("room", "message"),
    [
        (
            dataclasses.replace(PLENTY, files=499),
            "500 open files and may have 499; run `ulimit -n 500` before it (docker run --ulimit nofile=500), or lower max_sessions.",
        ),
        (
            limited(1000),
            "needs 1200 more processes and threads and may have 1000; allow 5200 in its control group",
        ),
        (
            dataclasses.replace(PLENTY, shared_memory=6 * MIB),
            "40 MiB of /dev/shm and may have 6; make it larger (docker run --shm-size=40m",
        ),
    ],
)
def test_what_is_short_for_all_sessions_is_a_warning(room: HostRoom, message: str) -> None:
    (warning,) = shortages(NEEDS, room)
    assert message in warning


@pytest.mark.parametrize(
    ("room", "message"),
    [
        (dataclasses.replace(PLENTY, files=99), "To start, the server needs 100 open files and may have 99; run `ulimit -n 500`"),
        (limited(999), "1000 more processes and threads and may have 999; allow 5201 in"),
        (dataclasses.replace(PLENTY, shared_memory=6 * MIB - 1), "6 MiB of /dev/shm and may have 5; make it larger"),
    ],
)
def test_what_is_short_for_the_start_is_an_error(room: HostRoom, message: str) -> None:
    with pytest.raises(ServerError) as failure:
        shortages(NEEDS, room)
    assert message in str(failure.value) and "\n" not in str(failure.value)


def test_every_shortage_is_named_at_once() -> None:
    with pytest.raises(ServerError) as failure:
        shortages(NEEDS, HostRoom(1, 1, 1, 1))
    assert len(str(failure.value).splitlines()) == 3


def test_warnings_are_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(host_limits, "host_room", lambda: dataclasses.replace(PLENTY, files=200))
    with caplog.at_level(logging.WARNING):
        prepare_host(ServerSettings(repository(tmp_path), Path(sys.executable), tmp_path))
    assert len(caplog.messages) == 1 and "open files" in caplog.messages[0]


def test_this_host_has_room_for_a_small_server() -> None:
    room = host_room()
    assert room.files > 128 and room.shared_memory > 0 and room.threads <= room.thread_limit


@pytest.mark.parametrize(
    ("before", "wanted", "after"),
    [
        ((256, 4096), 1000, 1000),
        ((256, 300), 1000, 300),
        ((2000, 4096), 1000, 2000),
        ((256, -1), 1000, 1000),
        ((-1, -1), 1000, NO_LIMIT),
        ((256, -1), NO_LIMIT, NO_LIMIT),
    ],
)
def test_the_soft_limit_is_raised_as_far_as_the_hard_one_allows(
    monkeypatch: pytest.MonkeyPatch, before: tuple[int, int], wanted: int, after: int
) -> None:
    """-1 is no limit, as in resource.RLIM_INFINITY."""
    limits = [before]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda kind, values: limits.append(values))
    assert raise_soft_limit(resource.RLIMIT_NOFILE, wanted) == after
    assert limits[-1] == (-1 if after == NO_LIMIT else after, before[1])


# The control group


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
    assert cgroup_threads(tmp_path, tmp_path) == (300, 1000)


def test_in_a_container_the_path_may_be_the_hosts(tmp_path: Path) -> None:
    """The folders of the host do not exist there; the container's own group is at the root."""
    member_of(tmp_path, "7:pids:/docker/0123456789")
    group(tmp_path / "pids", "64", used=70)
    assert cgroup_threads(tmp_path, tmp_path) == (0, 64)


@pytest.mark.parametrize("lines", [[], ["0::/"], ["5:cpu:/a"]])
def test_without_a_limit_there_is_none(tmp_path: Path, lines: list[str]) -> None:
    if lines:
        member_of(tmp_path, *lines)
    group(tmp_path, "max")
    assert cgroup_threads(tmp_path, tmp_path) == (NO_LIMIT, NO_LIMIT)


# Paths


def plain_repository(folder: Path, model_dir: str = "/models/CosyVoice2-0.5B") -> Path:
    (folder / "token2wav").mkdir(parents=True)
    text = f'parameters {{ key: "model_dir" value {{ string_value: "{model_dir}" }} }}\n'
    (folder / "token2wav" / "config.pbtxt").write_text(text, encoding="utf-8")
    return folder


def settings(model_repository: Path) -> ServerSettings:
    return ServerSettings(model_repository, Path(sys.executable), Path("/opt/backends"))


def test_plain_paths_are_fine(tmp_path: Path) -> None:
    check_paths(settings(plain_repository(tmp_path / "model_repo-2.0", "/a folder/with blanks")))


@pytest.mark.parametrize("name", ["with blank", "größe", "a;b", "$HOME", "a'b", "a\nb", "a*"])
def test_a_path_that_the_shell_would_change_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ServerError, match="make a link with a plain name"):
        check_paths(settings(plain_repository(tmp_path / name)))
    plain = settings(plain_repository(tmp_path / "plain"))
    with pytest.raises(ServerError, match="make a link with a plain name"):
        check_paths(dataclasses.replace(plain, backend_directory=Path("/opt") / name))
    link = tmp_path / "link"
    link.symlink_to(tmp_path / name)
    check_paths(settings(link))


def test_a_checkpoint_that_the_models_cannot_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="model_dir is '/modelle/größe'"):
        check_paths(settings(plain_repository(tmp_path / "repository", "/modelle/größe")))


@pytest.mark.parametrize("executable", ["token2wav/config.pbtxt", "missing", "token2wav"])
def test_a_file_that_cannot_be_executed_is_no_server(tmp_path: Path, executable: str) -> None:
    with pytest.raises(ServerError, match="cannot be executed"):
        check_paths(dataclasses.replace(settings(plain_repository(tmp_path)), executable=tmp_path / executable))


def test_a_repository_without_models_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ServerError, match="holds no model"):
        check_paths(settings(tmp_path))


def test_a_config_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = plain_repository(tmp_path / "repository")

    def read_text(path: Path, **arguments: object) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_text", read_text)
    with pytest.raises(ServerError, match=r"config.pbtxt cannot be read \(Permission denied\)"):
        check_paths(settings(folder))
