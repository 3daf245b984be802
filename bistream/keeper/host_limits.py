"""Whether the host gives the server the files, open files and shared memory that its settings need, checked before the start.

Without the check the server fails later and in a worse way: without open files it accepts no connection, without shared memory single
requests fail, and a path that Triton does not pass on whole hangs the start. Called by ``scripts/serve.py``.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import resource
import shutil
from dataclasses import dataclass
from pathlib import Path

from bistream.contract.audio import REFERENCE_SAMPLE_RATE
from bistream.contract.fields import COSYVOICE2_BISTREAM
from bistream.keeper.host import SHARED_MEMORY, ServerError
from bistream.keeper.repository import count_instances, read_number, read_parameters
from bistream.keeper.server_process import ServerSettings
from bistream.processes.limits import raise_soft_limit

logger = logging.getLogger(__name__)

MIB = 2**20
FILES_WANTED = 65_536  # the soft limit, as far as the hard one allows: connections that wait for their end count too
# Measured with six models on two cores without a GPU, idle: 70 files of the server itself, 1 MiB of shared memory for each model process.
# A network that takes a recording of 30 s in one piece grew its memory to 5 MiB.
_FILES_OF_SERVER, _FILES_TO_START = 256, 128
_MIB_OF_MODEL = 6
_CONNECTIONS_PER_SESSION = 4  # the session's own, ones that are opening or closing, and those of callers that are refused
_BYTES_PER_SAMPLE = 4
# What a shell takes as it is: the backend puts paths into a command line without quoting them.
_PLAIN = re.compile(r"[\w@%+=:,./-]+", re.ASCII)
_PATH_PARAMETERS = ("model_dir", "voices_dir")
_SETUP = "run: bash run.sh setup"


@dataclass(frozen=True)
class Need:
    """what: that amounts of are counted. to_start: less is an error. full: what ``max_sessions`` sessions may need at once; less is a
    warning. remedy: what the operator can do."""

    what: str
    to_start: int
    full: int
    remedy: str

    def shortage(self, left: int) -> str | None:
        """A sentence where ``left`` is enough to start, but not for ``max_sessions``. Raises ``ServerError`` where it is not."""
        if left >= self.full:
            return None
        if left < self.to_start:
            raise ServerError(f"To start, the server needs {self.to_start} {self.what} and may have {left}; {self.remedy}.")
        return (
            f"For max_sessions sessions at once the server needs {self.full} {self.what} and may have {left}; {self.remedy}, "
            "or lower max_sessions."
        )


def prepare_host(settings: ServerSettings) -> None:
    """Raise the soft limit of open files, log a warning for each shortage. Raises ``ServerError`` when the server could not start."""
    check_paths(settings)
    files, memory = raise_soft_limit(resource.RLIMIT_NOFILE, FILES_WANTED), 0
    with contextlib.suppress(OSError):
        memory = shutil.disk_usage(SHARED_MEMORY).free // MIB
    for need, left in zip(host_needs(settings.model_repository), (files, memory), strict=True):
        if (warning := need.shortage(left)) is not None:
            logger.warning("%s", warning)


def host_needs(model_repository: Path) -> tuple[Need, Need]:
    """Open files and shared memory, from the models' ``config.pbtxt``."""
    front_model = read_parameters(model_repository).get(COSYVOICE2_BISTREAM.name, {})
    instances, sessions = count_instances(model_repository), int(read_number(front_model, "max_sessions"))
    recordings = sessions * read_number(front_model, "max_reference_s") * REFERENCE_SAMPLE_RATE * _BYTES_PER_SAMPLE
    files = _FILES_OF_SERVER + _CONNECTIONS_PER_SESSION * sessions
    memory = instances * _MIB_OF_MODEL + math.ceil(recordings / MIB)
    return (
        Need("open files", _FILES_TO_START, files, f"run `ulimit -n {files}` before it (docker run --ulimit nofile={files})"),
        Need(f"MiB of {SHARED_MEMORY}", instances, memory, f"make it larger (docker run --shm-size={memory}m or --ipc=host)"),
    )


def check_paths(settings: ServerSettings) -> None:
    """Raises ``ServerError`` naming the first path that will not do."""
    for path in (settings.model_repository, settings.backend_directory):
        if not _PLAIN.fullmatch(str(path)):
            raise ServerError(
                f"The path {str(path)!r} has characters that this Triton build does not pass on whole (blanks, quotes, umlauts); "
                "move it, or make a link with a plain name and give that."
            )
    if not os.access(settings.executable, os.X_OK) or settings.executable.is_dir():
        raise ServerError(f"{settings.executable} cannot be executed; choose another --tritonserver, or {_SETUP}")
    if not (settings.backend_directory / "python").exists():
        raise ServerError(f"{settings.backend_directory / 'python'} does not exist; choose another --backend-directory, or {_SETUP}")
    try:
        parameters = read_parameters(settings.model_repository)
    except OSError as error:
        raise ServerError(f"{error.filename} cannot be read ({error.strerror}); make it readable for this user.") from None
    if not parameters:
        raise ServerError(f"{settings.model_repository} holds no model; make it with scripts/make_model_repo.py, or run: bash run.sh 2 2")
    for name, value in (pair for values in parameters.values() for pair in values.items()):
        if name in _PATH_PARAMETERS and not value.isascii():
            raise ServerError(f"{name} is {value!r}, but this Triton build reads ASCII file names only; rename it, or make a link to it.")
