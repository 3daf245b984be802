"""Notices that the server has run out of open files for good. Used by ``server_process``.

Without a free file it accepts no connection, and says so nowhere that matters. Where live connections hold the files, that passes. But
a stream whose request Triton itself refused (unknown model, wrong tensor) and whose client then leaves keeps its file for ever: the
build never closes it, and only a restart helps. The gate lets no such request through; with direct clients it can happen.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 1.0
LOOKS_BEFORE_FAILURE = 5
_WARN_SHARE = 0.8
_INODE_COLUMNS = {"tcp": 9, "tcp6": 9, "udp": 9, "udp6": 9, "unix": 6, "netlink": 9}  # of the tables in /proc/net
_CLOSE_WAIT = "08"  # the client has closed, the server has not


class FileWatch:
    """server: process id. ``failure`` may be called at any rate; it looks once in ``LOOK_INTERVAL_S``."""

    def __init__(self, server: int, clock: Callable[[], float] = time.monotonic, proc: Path = Path("/proc")) -> None:
        self._process = proc / str(server)
        self._clock = clock
        self._look_at = clock()
        self._looks_without_files = 0
        self._has_warned = False

    def failure(self) -> str | None:
        """Why the server must be restarted, or ``None``."""
        if self._clock() < self._look_at:
            return None
        self._look_at = self._clock() + LOOK_INTERVAL_S
        with contextlib.suppress(OSError, ValueError, IndexError):  # the server has ended
            return self._look()
        return None

    def _look(self) -> str | None:
        files, limit = len(os.listdir(self._process / "fd")), self._limit()
        if files < _WARN_SHARE * limit:
            self._has_warned, self._looks_without_files = False, 0
            return None
        left = self._left_by_clients()
        if not self._has_warned:
            self._has_warned = True
            logger.warning("the server has %d of %d files open, %d of them for connections whose clients have left", files, limit, left)
        is_stuck = files >= limit and 2 * left >= files
        self._looks_without_files = self._looks_without_files + 1 if is_stuck else 0
        if self._looks_without_files < LOOKS_BEFORE_FAILURE:
            return None
        return f"The server accepts no connections: {left} of its {limit} files are held by connections whose clients have left"

    def _limit(self) -> int:
        """The soft limit: "Max open files  1024  4096  files"."""
        lines = (self._process / "limits").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[3]) for line in lines if line.startswith("Max open files"))

    def _left_by_clients(self) -> int:
        """Sockets of the server that have no peer: half closed by the client, or closed altogether (no table of the kernel has them)."""
        connected = set()
        for name, inode in _INODE_COLUMNS.items():
            with contextlib.suppress(OSError):
                rows = [line.split() for line in (self._process / "net" / name).read_text(encoding="utf-8").splitlines()[1:]]
                connected |= {f"socket:[{row[inode]}]" for row in rows if not (name.startswith("tcp") and row[3] == _CLOSE_WAIT)}
        targets = [_target(path) for path in (self._process / "fd").iterdir()]
        return sum(1 for target in targets if target.startswith("socket:") and target not in connected)


def _target(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
