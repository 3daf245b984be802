"""Whether the server can work with the given paths, checked before the start. Called by ``host_limits.prepare_host``.

The backend puts the paths of itself and of a model into a command line for the shell without quoting them; a model process that gets
half of a path hangs the start. The interpreter inside it takes file names for ASCII, whatever the locale.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from bistream.keeper.host import ServerError
from bistream.keeper.server_process import ServerSettings

_PLAIN = re.compile(r"[\w@%+=:,./-]+", re.ASCII)  # what the shell takes as it is
_PATH_PARAMETER = re.compile(r'key: "(model_dir|voices_dir)" value \{ string_value: "([^"]*)" \}')


def check_paths(settings: ServerSettings) -> None:
    """Raises ``ServerError`` naming the first path that will not do."""
    for path in (settings.model_repository, settings.backend_directory):
        if not _PLAIN.fullmatch(str(path)):
            raise ServerError(
                f"The path {str(path)!r} has characters that this Triton build does not pass on whole (blanks, quotes, umlauts); "
                "move it, or make a link with a plain name and give that."
            )
    if not os.access(settings.executable, os.X_OK) or settings.executable.is_dir():
        raise ServerError(f"{settings.executable} cannot be executed; choose another --tritonserver, or run: bash run.sh setup")
    _check_models(settings.model_repository)


def _check_models(repository: Path) -> None:
    configs = 0
    try:
        for folder in sorted(repository.iterdir()):
            config = folder / "config.pbtxt"
            if folder.is_dir() and config.exists():
                configs += 1
                _check_parameters(config)
    except OSError as error:
        raise ServerError(f"{error.filename} cannot be read ({error.strerror}); make it readable for this user.") from None
    if configs == 0:
        raise ServerError(f"{repository} holds no model; make it with scripts/make_model_repo.py, or run: bash run.sh 2 2")


def _check_parameters(config: Path) -> None:
    for name, value in _PATH_PARAMETER.findall(config.read_text(encoding="utf-8", errors="replace")):
        if not value.isascii():
            raise ServerError(f"{name} is {value!r}, but this Triton build reads ASCII file names only; rename it, or make a link to it.")
