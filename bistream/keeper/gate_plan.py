"""What the gate and the server behind it must agree on: the server's ports on loopback, and the length of a text."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from bistream.contract.fields import COSYVOICE2_BISTREAM
from bistream.keeper.host import ServerError, is_free
from bistream.keeper.repository import read_parameters
from bistream.keeper.server_process import Ports, free_ports
from gateway.settings import GateLimits

LOOPBACK = "127.0.0.1"
BYTES_PER_CHARACTER = 4  # of UTF-8, at most
_ATTEMPTS = 100
_LOWEST_PORT = 10_000
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def inner_ports(metrics: int | None, others: Collection[int] = ()) -> Ports:
    """Ports for a server that is restarted on them. metrics: that of the metrics; ``None``: a free one too. others: wanted elsewhere.

    They lie below those that the system gives to connections, where it can be avoided: one of them could be given away while the server
    is down, even to the gate that tries to reach it, which would then talk to itself.
    """
    chosen: list[int] = []
    lowest = int(_EPHEMERAL.read_text(encoding="ascii").split()[0])
    for _ in range(_ATTEMPTS if lowest > _LOWEST_PORT else 0):
        port = random.randrange(_LOWEST_PORT, lowest)
        if port not in (*chosen, *others, metrics) and is_free(LOOPBACK, port):
            chosen.append(port)
        if len(chosen) == 3:
            break
    else:
        found = free_ports()
        chosen = [found.http, found.grpc, found.metrics]
    return Ports(chosen[0], chosen[1], chosen[2] if metrics is None else metrics)


def ports_in_a_row(count: int) -> range:
    """Free ones on loopback, of the same kind. Raises ``ServerError`` where there are none."""
    for _ in range(_ATTEMPTS):
        first = inner_ports(None).http
        if all(is_free(LOOPBACK, port) for port in range(first, first + count)):
            return range(first, first + count)
    raise ServerError(f"There are no {count} free ports in a row; give the ports.")


def fit_limits(limits: GateLimits, model_repository: Path) -> GateLimits:
    """Room for the longest text that the server takes, unless somebody has set another bound than the default."""
    if limits.max_text_bytes != GateLimits.max_text_bytes:
        return limits
    return replace(limits, max_text_bytes=max(limits.max_text_bytes, BYTES_PER_CHARACTER * _max_text_chars(model_repository)))


def _max_text_chars(model_repository: Path) -> int:
    value = read_parameters(model_repository).get(COSYVOICE2_BISTREAM.name, {}).get("max_text_chars", "")
    return int(value) if value.isdigit() else 0
