"""Ports for a server that listens only some time after they were chosen.

A port that the system has given and got back may by then belong to a connection of another process. These lie below the range from which
the system takes ports.
"""

from __future__ import annotations

from bistream.keeper.host import free_ports as ports

__all__ = ["port", "ports"]


def port() -> int:
    return ports(1)[0]
