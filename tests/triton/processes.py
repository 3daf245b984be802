"""What the processes of a kept server hold, from /proc, and which of them were replaced."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, fields
from pathlib import Path

from bistream.keeper.host import SHARED_MEMORY
from tests.triton.sockets import family

MIB = 2**20
FILES = "/dev/shm"  # named as a process: the files that all share


@dataclass(frozen=True)
class Usage:
    """Memory in MiB. ``shared``: resident pages of shared memory, or the size of the shared files."""

    rss: float = 0.0
    pss: float = 0.0
    descriptors: float = 0.0
    threads: float = 0.0
    shared: float = 0.0


MEASURES = tuple(one.name for one in fields(Usage))


def named(keeper: int) -> dict[str, int]:
    """Name to process id of a keeper and all that it has started; a model's process has the name of the model."""
    found = {}
    for process in family(keeper):
        with contextlib.suppress(OSError):
            if any(command := Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace").split("\0")):
                found[_name(command)] = process
    return found


def _name(command: list[str]) -> str:
    model = next((Path(word).parts[-3] for word in command if word.endswith("/1/model.py")), None)
    if model is not None:
        return model
    line = " ".join(command)
    return "keeper" if "serve.py" in line else "gate" if "gateway" in line else "tritonserver" if "tritonserver" in line else command[0]


def replaced(before: dict[str, int], after: dict[str, int]) -> list[str]:
    """Names of processes that are not those of before."""
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def described(before: dict[str, int], after: dict[str, int]) -> str:
    names = replaced(before, after)
    kept = sorted(before.keys() - set(names))
    told = f"all but {', '.join(kept)}" if len(names) > len(kept) else ", ".join(names)
    return f"{told} replaced" if names else f"the same {len(after)}"


def usages(keeper: int) -> dict[str, Usage]:
    """What each process holds now, and ``FILES``."""
    found = {}
    for name, process in named(keeper).items():
        with contextlib.suppress(OSError, KeyError):
            found[name] = _usage(Path(f"/proc/{process}"))
    found[FILES] = Usage(shared=file_bytes(keeper) / MIB)
    return found


def file_bytes(keeper: int) -> int:
    """Size of all shared-memory files of this keeper's server."""
    paths = [path for one in SHARED_MEMORY.glob(f"bistream_{keeper}_*") for path in (one, *one.rglob("*"))]
    sizes = 0
    for path in paths:
        with contextlib.suppress(OSError):
            sizes += path.stat().st_size if path.is_file() else 0
    return sizes


def _usage(folder: Path) -> Usage:
    status = _fields(folder / "status")
    return Usage(
        rss=_mib(status["VmRSS"]),
        pss=_mib(_fields(folder / "smaps_rollup")["Pss"]),
        descriptors=len(os.listdir(folder / "fd")),
        threads=int(status["Threads"]),
        shared=_mib(status["RssShmem"]),
    )


def _fields(path: Path) -> dict[str, str]:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _mib(value: str) -> float:
    return int(value.split()[0]) / 1024
