"""Attacks on Envoy with our configuration: live sessions go on, new ones of others are taken, and what the attack took comes back.

No time decides: that a caller is served too slowly shows as an answer that is not there within a minute. Longest waits are logged.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.triton.conftest import wait_for
from tests.unit.edge.gate import UNARY
from tests.unit.edge.rig import LOOPBACK, Edge, Served

logger = logging.getLogger(__name__)

SHORT = 2.0
GROWTH_MIB = 256.0
CONNECTIONS_TO_GATE = 100  # are kept for a minute
# Each comes from addresses of its own: a bucket of calls is empty for a second.
ATTACKS = {
    "empty_messages": ["127.0.2.1"],
    "resets": ["127.0.2.2"],
    "calls": ["127.0.2.3"],
    "idle": ["127.0.2.4", "127.0.2.5"],
    "slow_heads": ["127.0.2.6"],
    "unread": ["127.0.2.7"],
    "pings": ["127.0.2.8"],
    "settings": ["127.0.2.9"],
    "empty_frames": ["127.0.2.10"],
}
LENGTHS = [SHORT, pytest.param(20.0, marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    with Edge(tmp_path_factory.mktemp("edge")) as made:
        yield made


def check(edge: Edge, served: Served, descriptors: int, memory_mib: float) -> None:
    logger.info(
        "longest wait %.0f ms of %d, longest start %.0f ms of %d, Envoy %.0f MiB, attack %s",
        1000 * max(served.waits_s),
        len(served.waits_s),
        1000 * max(served.starts_s),
        len(served.starts_s),
        edge.memory_mib,
        served.attacks,
    )
    assert served.refused == []
    assert edge.memory_mib < memory_mib + GROWTH_MIB
    wait_for(lambda: edge.stat("http.grpc.downstream_cx_active") == 0, "the connections of the attackers to be gone")
    assert edge.descriptors < descriptors + CONNECTIONS_TO_GATE


@pytest.mark.parametrize("seconds", LENGTHS)
@pytest.mark.parametrize("kind", ATTACKS)
def test_an_attack_costs_nobody_else_anything(kind: str, seconds: float, edge: Edge) -> None:
    before = edge.descriptors, edge.memory_mib
    served = edge.under(*(edge.attack(kind, address, seconds) for address in ATTACKS[kind]))
    check(edge, served, *before)


@pytest.mark.skipif(shutil.which("h2load") is None, reason="needs h2load (nghttp2-client)")
def test_h2load(edge: Edge, tmp_path: Path) -> None:
    body = tmp_path / "message"
    body.write_bytes(bytes(5))
    before = edge.descriptors, edge.memory_mib
    words = [
        "h2load",
        "-n",
        "16000",
        "-c",
        "16",
        "-m",
        "128",
        "-d",
        str(body),
        "-H",
        "content-type: application/grpc",
        "-H",
        "te: trailers",
    ]
    served = edge.under([*words, f"http://{LOOPBACK}:{edge.grpc_port}{UNARY}"])
    assert "16000 succeeded" in served.attacks[0], "a refusal is an answer, too"
    check(edge, served, *before)
