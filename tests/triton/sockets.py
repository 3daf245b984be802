"""Where the processes of a tree listen, from /proc."""

from __future__ import annotations

import contextlib
import ipaddress
import os
from pathlib import Path

TCP_LISTEN, UDP_UNCONNECTED = "0A", "07"


def parents() -> dict[int, int]:
    """Parent of every process."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            found[int(path.parent.name)] = int(path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1])
    return found


def family(root: int) -> set[int]:
    """A process and all that descend from it."""
    parent_of, found = parents(), {root}
    while more := {child for child, parent in parent_of.items() if parent in found} - found:
        found |= more
    return found


def listening(processes: set[int]) -> set[tuple[str, int]]:
    """(address, port) of every socket of these processes that takes connections or datagrams; IPv4 in IPv6 as IPv4."""
    owned = {inode for process in processes for inode in _sockets_of(process)}
    assert owned, "no process has a socket"
    found = set()
    for name, state in (("tcp", TCP_LISTEN), ("tcp6", TCP_LISTEN), ("udp", UDP_UNCONNECTED), ("udp6", UDP_UNCONNECTED)):
        for line in Path(f"/proc/net/{name}").read_text(encoding="ascii").splitlines()[1:]:
            fields = line.split()
            if fields[9] in owned and fields[3] == state:
                address, _, port = fields[1].partition(":")
                found.add((str(_address(address)), int(port, 16)))
    return found


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The kernel prints words of four bytes in the order of the machine."""
    words = [bytes.fromhex(text[start : start + 8])[::-1] for start in range(0, len(text), 8)]
    address = ipaddress.ip_address(b"".join(words))
    mapped = getattr(address, "ipv4_mapped", None)
    return address if mapped is None else mapped


def _sockets_of(process: int) -> set[str]:
    found = set()
    for path in Path(f"/proc/{process}/fd").glob("*"):
        with contextlib.suppress(OSError):
            target = os.readlink(path)
            if target.startswith("socket:["):
                found.add(target[len("socket:[") : -1])
    return found
