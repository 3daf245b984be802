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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bistream.contract.audio import REFERENCE_SAMPLE_RATE
from bistream.contract.fields import COSYVOICE2_BISTREAM
from bistream.keeper.host import SHARED_MEMORY, ServerError
from bistream.keeper.repository import count_instances, read_parameters
from bistream.keeper.server_process import ServerSettings
from bistream.processes.limits import raise_soft_limit

logger = logging.getLogger(__name__)

MIB = 2**20
FILES_WANTED = 65_536  # the soft limit, as far as the hard one allows: connections that wait for their end count too
# Measured with six models on two cores without a GPU, idle: 70 files of the server itself, 1 MiB of shared memory for each model process.
# A network that takes a recording of 30 s in one piece grew its memory to 5 MiB.
_FILES_OF_SERVER, _FILES_TO_START = 256, 128
_MEMORY_TO_START, _MEMORY_OF_MODEL = MIB, 6 * MIB
_CONNECTIONS_PER_SESSION = 4  # the session's own, ones that are opening or closing, and those of callers that are refused
_BYTES_PER_SAMPLE = 4
# What a shell takes as it is: the backend puts paths into a command line without quoting them.
_PLAIN = re.compile(r"[\w@%+=:,./-]+", re.ASCII)
_PATH_PARAMETERS = ("model_dir", "voices_dir")
_SETUP = "run: bash run.sh setup"


@dataclass(frozen=True)
class Need:
    """to_start: less is an error. full: what ``max_sessions`` sessions may need at once; less is a warning."""

    to_start: int
    full: int


@dataclass(frozen=True)
class HostNeeds:
    """files: open in one process. shared_memory: bytes."""

    files: Need
    shared_memory: Need


def prepare_host(settings: ServerSettings) -> None:
    """Raise the soft limit of open files, log a warning for each shortage. Raises ``ServerError`` when the server could not start."""
    check_paths(settings)
    files, memory = raise_soft_limit(resource.RLIMIT_NOFILE, FILES_WANTED), 0
    with contextlib.suppress(OSError):
        memory = shutil.disk_usage(SHARED_MEMORY).free
    for warning in shortages(host_needs(settings.model_repository), files, memory):
        logger.warning("%s", warning)


def host_needs(model_repository: Path) -> HostNeeds:
    """From the models' ``config.pbtxt``."""
    front_model = read_parameters(model_repository).get(COSYVOICE2_BISTREAM.name, {})
    instances = count_instances(model_repository)
    sessions, recording_s = int(_number(front_model, "max_sessions")), _number(front_model, "max_reference_s")
    recordings = int(sessions * recording_s * REFERENCE_SAMPLE_RATE * _BYTES_PER_SAMPLE)
    return HostNeeds(
        Need(_FILES_TO_START, _FILES_OF_SERVER + _CONNECTIONS_PER_SESSION * sessions),
        Need(instances * _MEMORY_TO_START, instances * _MEMORY_OF_MODEL + recordings),
    )


def _number(parameters: Mapping[str, str], name: str) -> float:
    """0 where it is missing or not a number: the model that reads it says so better."""
    try:
        number = float(parameters.get(name, "0"))
    except ValueError:
        return 0.0
    return number if math.isfinite(number) else 0.0


def shortages(needs: HostNeeds, files_left: int, memory_left: int) -> list[str]:
    """One sentence for each thing that is enough to start, but not for ``max_sessions``. Raises ``ServerError`` for what is not."""
    more_files = f"run `ulimit -n {needs.files.full}` before it (docker run --ulimit nofile={needs.files.full})"
    more_memory = f"make it larger (docker run --shm-size={math.ceil(needs.shared_memory.full / MIB)}m or --ipc=host)"
    warnings = []
    for need, left, unit, what, remedy in (
        (needs.files, files_left, 1, "open files", more_files),
        (needs.shared_memory, memory_left, MIB, f"MiB of {SHARED_MEMORY}", more_memory),
    ):
        amount = math.ceil((need.to_start if left < need.to_start else need.full) / unit)
        words = f"{amount} {what} and may have {left // unit}; {remedy}"
        if left < need.to_start:
            raise ServerError(f"To start, the server needs {words}.")
        if left < need.full:
            warnings.append(f"For max_sessions sessions at once the server needs {words}, or lower max_sessions.")
    return warnings


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
