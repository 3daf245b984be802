"""What the server needs of the host, computed from the models' settings, and the sentence for each thing that is short."""

from __future__ import annotations

import dataclasses
import logging
import re
import resource
import sys
from pathlib import Path
from typing import Any

import pytest

from bistream.keeper import host_limits
from bistream.keeper.host import ServerError
from bistream.keeper.host_limits import (
    Need,
    check_paths,
    host_needs,
    prepare_host,
)
from bistream.keeper.server_process import ServerSettings
from bistream.processes.limits import NO_LIMIT, raise_soft_limit
from scripts.make_model_repo import make, model_names, model_values

ROOT = Path(__file__).resolve().parents[3]
NEED = Need("open files", 100, 500, "run `ulimit -n 500`")


def repository(folder: Path, **settings: str) -> Path:
    make(folder / "repository", model_values(model_names(), {"model_dir": "x", **settings}, "torch"))
    return folder / "repository"


def test_needs_cover_what_was_measured_and_grow_with_sessions_and_instances(tmp_path: Path) -> None:
    """An idle server on two cores: 70 files; 6 MiB."""
    few, many, instances = (
        host_needs(repository(tmp_path / str(number), **settings))
        for number, settings in enumerate(({}, {"max_sessions": "256"}, {"cosyvoice2.bls_instance_num": "4"}))
    )
    (files, memory), (many_files, many_memory), (_, more_memory) = few, many, instances
    assert 70 < files.to_start < files.full and memory.to_start == 6 < memory.full
    assert many_files.full == files.full + 4 * 192
    assert many_memory.full - memory.full == pytest.approx(192 * 30 * 16000 * 4 / 2**20, abs=1.0)
    assert more_memory.to_start == memory.to_start + 3


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
    assert host_needs(tmp_path / "repository")[0].full == 256


def test_what_is_short_is_a_warning_or_an_error() -> None:
    assert NEED.shortage(500) is None
    warning = NEED.shortage(499)
    assert warning == (
        "For max_sessions sessions at once the server needs 500 open files and may have 499; run `ulimit -n 500`, or lower max_sessions."
    )
    with pytest.raises(ServerError, match="^To start, the server needs 100 open files and may have 99; run `ulimit -n 500`.$"):
        NEED.shortage(99)


def test_a_shortage_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(host_limits, "raise_soft_limit", lambda kind, wanted: 200)
    with caplog.at_level(logging.WARNING):
        prepare_host(settings(repository(tmp_path), tmp_path))
    assert any("open files" in message for message in caplog.messages)


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


# Paths


def plain_repository(folder: Path, model_dir: str = "/models/CosyVoice2-0.5B") -> Path:
    (folder / "token2wav").mkdir(parents=True)
    text = f'parameters {{ key: "model_dir" value {{ string_value: "{model_dir}" }} }}\n'
    (folder / "token2wav" / "config.pbtxt").write_text(text, encoding="utf-8")
    return folder


def settings(model_repository: Path, backends: Path) -> ServerSettings:
    (backends / "python").mkdir(parents=True, exist_ok=True)
    return ServerSettings(model_repository, Path(sys.executable), backends)


@pytest.mark.parametrize("name", ["with blank", "größe", "a;b", "$HOME", "a'b", "a\nb", "a*"])
def test_a_path_that_the_shell_would_change_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ServerError, match="make a link with a plain name"):
        check_paths(settings(plain_repository(tmp_path / name), tmp_path))
    plain = settings(plain_repository(tmp_path / "plain", "/a folder/with blanks"), tmp_path)
    check_paths(plain)
    with pytest.raises(ServerError, match="make a link with a plain name"):
        check_paths(dataclasses.replace(plain, backend_directory=Path("/opt") / name))
    link = tmp_path / "link"
    link.symlink_to(tmp_path / name)
    check_paths(settings(link, tmp_path))


def test_what_is_missing_or_cannot_be_named_is_refused(tmp_path: Path) -> None:
    made = settings(plain_repository(tmp_path / "repository"), tmp_path)
    german = plain_repository(tmp_path / "other", "/modelle/größe")
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"model_repository": tmp_path / "none"}, "holds no model"),
        ({"model_repository": german}, "model_dir is '/modelle/größe'"),
        ({"executable": german / "token2wav" / "config.pbtxt"}, "cannot be executed"),
        ({"executable": german}, "cannot be executed"),
        ({"backend_directory": german}, "--backend-directory"),
    )
    for changes, words in wrong:
        with pytest.raises(ServerError, match=words):
            check_paths(dataclasses.replace(made, **changes))
