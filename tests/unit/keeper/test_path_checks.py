"""Paths that would hang the server's start, or fail in a model's own words, are refused with a sentence before it."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from bistream.keeper.host import ServerError
from bistream.keeper.path_checks import check_paths
from bistream.keeper.server_process import ServerSettings


def repository(folder: Path, model_dir: str = "/models/CosyVoice2-0.5B") -> Path:
    (folder / "token2wav").mkdir(parents=True)
    text = f'parameters {{ key: "model_dir" value {{ string_value: "{model_dir}" }} }}\n'
    (folder / "token2wav" / "config.pbtxt").write_text(text, encoding="utf-8")
    return folder


def settings(model_repository: Path) -> ServerSettings:
    return ServerSettings(model_repository, Path(sys.executable), Path("/opt/backends"))


def test_plain_paths_are_fine(tmp_path: Path) -> None:
    check_paths(settings(repository(tmp_path / "model_repo-2.0", "/a folder/with blanks")))


@pytest.mark.parametrize("name", ["with blank", "größe", "a;b", "$HOME", "a'b", "a\nb", "a*"])
def test_a_path_that_the_shell_would_change_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ServerError, match="make a link with a plain name"):
        check_paths(settings(repository(tmp_path / name)))
    plain = settings(repository(tmp_path / "plain"))
    with pytest.raises(ServerError, match="make a link with a plain name"):
        check_paths(dataclasses.replace(plain, backend_directory=Path("/opt") / name))
    link = tmp_path / "link"
    link.symlink_to(tmp_path / name)
    check_paths(settings(link))


def test_a_checkpoint_that_the_models_cannot_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="model_dir is '/modelle/größe'"):
        check_paths(settings(repository(tmp_path / "repository", "/modelle/größe")))


@pytest.mark.parametrize("executable", ["token2wav/config.pbtxt", "missing", "token2wav"])
def test_a_file_that_cannot_be_executed_is_no_server(tmp_path: Path, executable: str) -> None:
    with pytest.raises(ServerError, match="cannot be executed"):
        check_paths(dataclasses.replace(settings(repository(tmp_path)), executable=tmp_path / executable))


def test_a_repository_without_models_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ServerError, match="holds no model"):
        check_paths(settings(tmp_path))


def test_a_config_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = repository(tmp_path / "repository")

    def read_text(path: Path, **arguments: object) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_text", read_text)
    with pytest.raises(ServerError, match=r"config.pbtxt cannot be read \(Permission denied\)"):
        check_paths(settings(folder))
