"""How many more processes and threads the host allows: RLIMIT_NPROC of the user, pids.max of the control group. For ``host_limits``."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bistream.process_limits import NO_LIMIT, raise_soft_limit

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")

_CGROUP_ADVICE = "allow {limit} in its control group (docker run --pids-limit={limit}, systemd TasksMax={limit}, Kubernetes podPidsLimit)"


@dataclass(frozen=True)
class ThreadLimit:
    """limit: of processes and threads together. left: how many more may be made. advice: how to set it; {limit} stands for a number."""

    limit: int
    left: int
    advice: str

    def remedy(self, needed: int) -> str:
        """What to do so that ``needed`` more can be made."""
        return self.advice.format(limit=self.limit - self.left + needed)


def thread_limits() -> tuple[ThreadLimit, ...]:
    """Those that exist. Raises the soft limit of the user to the hard one."""
    limits = (user_limit(), cgroup_limit())
    return tuple(limit for limit in limits if limit is not None)


def user_limit(proc: Path = _PROC) -> ThreadLimit | None:
    """RLIMIT_NPROC, which counts the threads of a user on the whole host. None without a limit, and for root, to whom it does not apply.

    Root inside a user namespace is an ordinary user here (fork(2)). Processes in other containers count, but cannot be seen.
    """
    limit = raise_soft_limit(resource.RLIMIT_NPROC, NO_LIMIT)
    if limit == NO_LIMIT or _is_root(proc):
        return None
    used = sum(_threads_of(path, os.getuid()) for path in proc.glob("[0-9]*/status"))
    return ThreadLimit(limit, max(0, limit - used), "run `ulimit -u {limit}` before it (docker run --ulimit nproc={limit})")


def cgroup_limit(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> ThreadLimit | None:
    """The tightest pids.max of this process's control group (version 2 or 1) and those above it."""
    limits = []
    for folder in _control_groups(proc, cgroups):
        with contextlib.suppress(OSError, ValueError):  # ValueError: max, no limit
            limit = int((folder / "pids.max").read_text(encoding="ascii"))
            used = int((folder / "pids.current").read_text(encoding="ascii"))
            advice = (
                "allow {limit} in its control group (docker run --pids-limit={limit}; systemd: TasksMax={limit}; Kubernetes: podPidsLimit)"
            )
            limits.append(ThreadLimit(limit, max(0, limit - used), advice))
    return min(limits, key=lambda limit: limit.left, default=None)


def _is_root(proc: Path) -> bool:
    if os.getuid() != 0:
        return False
    with contextlib.suppress(OSError, IndexError):
        return (proc / "self/uid_map").read_text(encoding="ascii").split()[1] == "0"  # the user outside whom 0 stands for
    return True


def _threads_of(status: Path, user: int) -> int:
    """0 for a process of another user."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = dict(line.split(":", 1) for line in status.read_text(encoding="utf-8", errors="replace").splitlines() if ":" in line)
        if int(fields["Uid"].split()[0]) == user:
            return int(fields["Threads"])
    return 0


def _control_groups(proc: Path, cgroups: Path) -> Iterator[Path]:
    """Folders from the process's own group up to the root. In a container the path may be the host's, whose folders do not exist."""
    with contextlib.suppress(OSError):
        for line in (proc / "self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers not in ("", "pids"):
                continue
            root = cgroups / controllers
            group = Path(path.lstrip("/"))
            yield from (root / folder for folder in (group, *group.parents))
