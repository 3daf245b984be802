"""Hides an argument of a running child process from ``ps`` and ``/proc/PID/cmdline``, which every user of the machine can read.

Triton takes the key of its restricted requests from the command line only. So the keeper overwrites it in the memory of the server, as
soon as the server has read it. That needs no privilege: a parent may write into its child's memory, unless the host forbids all tracing.
"""

from __future__ import annotations

import logging
from pathlib import Path

logger = logging.getLogger(__name__)

_ARG_START, _ARG_END = 48 - 3, 49 - 3  # fields of /proc/PID/stat after the state, which is the third (proc(5))


def hide_argument(pid: int, secret: str) -> bool:
    """Replace every occurrence of ``secret`` in the command line that the process shows. Whether it is hidden now."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        begin, end = int(fields[_ARG_START]), int(fields[_ARG_END])
        with Path(f"/proc/{pid}/mem").open("r+b", buffering=0) as memory:
            memory.seek(begin)
            shown = memory.read(end - begin)
            place = shown.find(secret.encode())
            while place >= 0:
                memory.seek(begin + place)
                memory.write(b"x" * len(secret))
                place = shown.find(secret.encode(), place + 1)
        return secret.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError, IndexError) as error:
        logger.warning("the key of the restricted requests stays visible on the server's command line (%s)", error)
        return False
