"""Strangers who flood the gRPC door, with callers beside them, whose sessions go on and who are not refused."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.unit.client.fake_server import Speakers
from tests.unit.edge.http2 import PREFACE, Kind, frame
from tests.unit.gateway.company import Company, Proc
from tests.unit.gateway.marks import long
from tests.unit.gateway.rig import TIMEOUT_S, FakeTriton
from tests.unit.gateway.test_process import ROOT, Process

ADDRESS = "127.0.0.2"  # another one than that of the callers beside
ATTACKS = ("empty_messages", "resets", "pings", "settings", "continuations", "empty_continuations", "empty_frames")
SHORT_S, LONG_S = 0.1, 10.0
KEPT_MIB = 400  # of memory that the allocator may keep after a flood; the flood itself is gigabytes
SLOW_CONNECTIONS = 100


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    server = FakeTriton(Speakers())
    with Process(tmp_path_factory.mktemp("gate"), server) as made:
        yield made
    server.stop()


@pytest.fixture
def company(gate: Process, request: pytest.FixtureRequest) -> Iterator[Company]:
    """Beside the test; afterwards the gate has as much memory as before, and after long floods as many descriptors: gRPC may learn by its
    keepalive alone, after 30 s, that a connection which it had stopped reading is gone."""
    process = Proc(gate.process.pid)
    descriptors, memory_mib = process.descriptors, process.memory_mib
    with Company(gate.grpc_url) as made:
        yield made
    deadline = time.monotonic() + TIMEOUT_S
    while request.node.get_closest_marker("slow") is not None and process.descriptors > descriptors:
        assert time.monotonic() < deadline, f"{process.descriptors} descriptors, {descriptors} before"
        time.sleep(0.05)
    assert process.memory_mib < memory_mib + KEPT_MIB


def port_of(gate: Process) -> int:
    return int(gate.grpc_url.rpartition(":")[2])


def attack(gate: Process, seconds: float, *names: str) -> None:
    """One attack after the other; see ``edge/attackers.py``."""
    attacks = [word for name in names for word in (name, ADDRESS)]
    command = [sys.executable, "-m", "tests.unit.edge.attackers", str(port_of(gate)), str(seconds), *attacks]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=len(names) * seconds + TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr


def test_floods_of_frames(gate: Process, company: Company) -> None:
    attack(gate, SHORT_S, *ATTACKS)


@long
@pytest.mark.parametrize("name", ATTACKS)
def test_a_long_flood_of_frames(gate: Process, company: Company, name: str) -> None:
    attack(gate, LONG_S, name)


@long
def test_floods_one_after_another_leave_no_memory(gate: Process) -> None:
    process = Proc(gate.process.pid)
    after: list[float] = []
    for _ in range(4):
        with Company(gate.grpc_url):
            attack(gate, LONG_S, "empty_messages")
        after.append(process.memory_mib)
    assert after[-1] < after[0] + 150, after


def test_connections_that_say_nothing_or_little(gate: Process, company: Company) -> None:
    """A hundred of them, which stop before, in and after the preface."""
    beginnings = [b"", PREFACE[:5], PREFACE, PREFACE + frame(Kind.SETTINGS, 0, 0)[:4], PREFACE + frame(Kind.SETTINGS, 0, 0)]
    sockets = []
    for number in range(SLOW_CONNECTIONS):
        made = socket.create_connection(("127.0.0.1", port_of(gate)), source_address=(ADDRESS, 0))
        made.sendall(beginnings[number % len(beginnings)])
        sockets.append(made)
    served = dict(company.served)
    deadline = time.monotonic() + TIMEOUT_S
    while any(company.served[kind] < served.get(kind, 0) + 3 for kind in ("session", "question")):
        assert time.monotonic() < deadline and not company.failures, company.failures
        time.sleep(0.02)
    for made in sockets:
        made.close()
