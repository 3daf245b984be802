"""Whether the host gives the server the open files, threads and shared memory that its settings need, checked before the start.

Without the check the server fails later and in a worse way: without files it accepts no connection, without threads the start ends
in the trace of a library, without shared memory single requests fail. Called by ``scripts/serve.py``.
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

from bistream.contract.fields import COSYVOICE2_BISTREAM
from bistream.keeper.host import SHARED_MEMORY, ServerError
from bistream.keeper.repository import count_instances, read_parameters
from bistream.keeper.server_process import BACKEND_THREADS, ServerSettings
from bistream.processes.limits import NO_LIMIT, raise_soft_limit
from bistream.rates import REFERENCE_SAMPLE_RATE

logger = logging.getLogger(__name__)

MIB = 2**20
FILES_WANTED = 65_536  # the soft limit, as far as the hard one allows: connections that wait for their end count too
# Measured with six models on two cores without a GPU, idle: 70 files and 46 threads of the server itself, 8 to 13 threads of a model
# process, 1 MiB of shared memory each. A network that takes a recording of 30 s in one piece grew its memory to 5 MiB.
_FILES_OF_SERVER, _FILES_TO_START = 256, 128
_THREADS_OF_SERVER, _THREADS_OF_MODEL, _THREADS_OF_KEEPER = 64, 16, 16
_MEMORY_TO_START, _MEMORY_OF_MODEL = MIB, 6 * MIB
_CONNECTIONS_PER_SESSION = 4  # the session's own, ones that are opening or closing, and those of callers that are refused
_BYTES_PER_SAMPLE = 4
# What a shell takes as it is: the backend puts paths into a command line without quoting them, and a model process that gets half of a
# path hangs the start.
_PLAIN = re.compile(r"[\w@%+=:,./-]+", re.ASCII)
_PATH_PARAMETERS = ("model_dir", "voices_dir")


@dataclass(frozen=True)
class Need:
    """to_start: less is an error. full: what ``max_sessions`` sessions may need at once; less is a warning."""

    to_start: int
    full: int


@dataclass(frozen=True)
class HostNeeds:
    """files: open in one process. threads: of the server, its models and the keeper. shared_memory: bytes."""

    files: Need
    threads: Need
    shared_memory: Need


@dataclass(frozen=True)
class HostRoom:
    """threads: more of them and of processes that the control group allows. thread_limit: those that exist included."""

    files: int
    threads: int
    thread_limit: int
    shared_memory: int


def host_needs(model_repository: Path, processors: int) -> HostNeeds:
    """From the models' ``config.pbtxt``."""
    parameters, instances = read_parameters(model_repository), count_instances(model_repository)
    front_model = parameters.get(COSYVOICE2_BISTREAM.name, {})
    sessions, recording_s = int(_number(front_model, "max_sessions")), _number(front_model, "max_reference_s")
    compute = sum(int(_number(values, "num_threads")) or processors for values in parameters.values())
    threads = _THREADS_OF_KEEPER + _THREADS_OF_SERVER + instances * (BACKEND_THREADS + _THREADS_OF_MODEL)
    recordings = int(sessions * recording_s * REFERENCE_SAMPLE_RATE * _BYTES_PER_SAMPLE)
    return HostNeeds(
        Need(_FILES_TO_START, _FILES_OF_SERVER + _CONNECTIONS_PER_SESSION * sessions),
        Need(threads, threads + processors + compute),  # a start may do with fewer computing threads
        Need(instances * _MEMORY_TO_START, instances * _MEMORY_OF_MODEL + recordings),
    )


def _number(parameters: Mapping[str, str], name: str) -> float:
    """0 where it is missing or not a number: the model that reads it says so better."""
    try:
        number = float(parameters.get(name, "0"))
    except ValueError:
        return 0.0
    return number if math.isfinite(number) else 0.0


def prepare_host(settings: ServerSettings) -> None:
    """Raise the soft limits, log a warning for each shortage. Raises ``ServerError`` when the server could not start."""
    check_paths(settings)
    processors = len(os.sched_getaffinity(0))
    for warning in shortages(host_needs(settings.model_repository, processors), host_room()):
        logger.warning("%s", warning)


def host_room() -> HostRoom:
    """Raises the soft limits of this process, and so of the server, as a side effect."""
    files = raise_soft_limit(resource.RLIMIT_NOFILE, FILES_WANTED)
    shared_memory = 0
    with contextlib.suppress(OSError):
        shared_memory = shutil.disk_usage(SHARED_MEMORY).free
    return HostRoom(files, *cgroup_threads(), shared_memory)


def cgroup_threads(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> tuple[int, int]:
    """(left, limit) of the tightest pids.max of this process's control group (version 2 or 1) and those above it. In a container the path
    may be the host's, whose folders do not exist."""
    found = [(NO_LIMIT, NO_LIMIT)]
    with contextlib.suppress(OSError):
        for line in (proc / "self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers not in ("", "pids"):
                continue
            group = Path(path.lstrip("/"))
            for folder in (cgroups / controllers / each for each in (group, *group.parents)):
                with contextlib.suppress(OSError, ValueError):  # ValueError: max, no limit
                    limit = int((folder / "pids.max").read_text(encoding="ascii"))
                    found.append((max(0, limit - int((folder / "pids.current").read_text(encoding="ascii"))), limit))
    return min(found)


def shortages(needs: HostNeeds, room: HostRoom) -> list[str]:
    """One sentence for each thing that is enough to start, but not for ``max_sessions``. Raises ``ServerError`` for what is not."""
    files, memory = needs.files.full, f"{math.ceil(needs.shared_memory.full / MIB)}m"
    raise_files = f"run `ulimit -n {files}` before it (docker run --ulimit nofile={files})"
    threads = room.thread_limit - room.threads + needs.threads.full
    more_threads = f"allow {threads} in its control group (docker run --pids-limit={threads}; systemd TasksMax; Kubernetes podPidsLimit)"
    more_memory = f"make it larger (docker run --shm-size={memory} or --ipc=host)"
    checks = [
        (needs.files, room.files, 1, "open files", raise_files),
        (needs.threads, room.threads, 1, "more processes and threads", more_threads),
        (needs.shared_memory, room.shared_memory, MIB, f"MiB of {SHARED_MEMORY}", more_memory),
    ]
    errors, warnings = [], []
    for need, left, unit, what, remedy in checks:
        amounts = f"{{}} {what} and may have {left // unit}; {remedy}"
        if left < need.to_start:
            errors.append(f"To start, the server needs {amounts.format(math.ceil(need.to_start / unit))}.")
        elif left < need.full:
            amount = amounts.format(math.ceil(need.full / unit))
            warnings.append(f"For max_sessions sessions at once the server needs {amount}, or lower max_sessions.")
    if errors:
        raise ServerError("\n".join(errors))
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
        raise ServerError(f"{settings.executable} cannot be executed; choose another --tritonserver, or run: bash run.sh setup")
    try:
        parameters = read_parameters(settings.model_repository)
    except OSError as error:
        raise ServerError(f"{error.filename} cannot be read ({error.strerror}); make it readable for this user.") from None
    if not parameters:
        raise ServerError(f"{settings.model_repository} holds no model; make it with scripts/make_model_repo.py, or run: bash run.sh 2 2")
    for name, value in (pair for values in parameters.values() for pair in values.items()):
        if name in _PATH_PARAMETERS and not value.isascii():
            raise ServerError(f"{name} is {value!r}, but this Triton build reads ASCII file names only; rename it, or make a link to it.")
