"""Ports for a server that listens only some time after they were chosen.

A port that the system has given and got back may by then belong to a connection of another process. These lie below the range from which
the system takes ports.
"""

from __future__ import annotations

from bistream.keeper.gate_plan import LOOPBACK, inner_ports
from bistream.keeper.host import is_free

_ATTEMPTS = 100


def ports(count: int) -> range:
    """Ports in a row, all free."""
    for _ in range(_ATTEMPTS):
        first = inner_ports(None).http
        if all(is_free(LOOPBACK, port) for port in range(first, first + count)):
            return range(first, first + count)
    raise AssertionError(f"there are no {count} free ports in a row")


def port() -> int:
    return ports(1)[0]
