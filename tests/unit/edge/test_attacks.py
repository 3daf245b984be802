"""Attacks on Envoy with our configuration: live sessions go on, new ones of others are taken, and what the attack took comes back.

Where no report is written (``run.sh attack``) no time decides: the longest waits are logged.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.triton.conftest import wait_for
from tests.triton.reliability import Attack
from tests.unit.edge.rig import NEW, Edge, Served

logger = logging.getLogger(__name__)

SHORT = 0.2
TOLD = "(then the longest waits of both, and Envoy's memory)"
MUST = f"live sessions go on and new ones begin, without a gap of 1 s; memory and connections come back {TOLD}"
MUST_AT_LAST = f"live sessions go on; new ones begin when the calls that hold the most have been reset {TOLD}"
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
LONG = 20.0


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    with Edge(tmp_path_factory.mktemp("edge")) as made:
        yield made


def check(edge: Edge, served: Served, descriptors: int, memory_mib: float, attack: Attack) -> None:
    longest_ms, start_ms = (1000 * max(values) for values in (served.waits_s, served.starts_s))
    attack.unit = "answers"
    attack.got(["answer"] * len(served.waits_s) + ["new session"] * len(served.starts_s) + ["refused"] * len(served.refused))
    attack.remarks.append(f"waits {longest_ms:.0f}, {start_ms:.0f} ms; {edge.memory_mib:.0f} MiB")
    logger.info("%s: %s", attack.name, attack.remarks[-1])
    assert served.refused == []
    assert edge.memory_mib < memory_mib + GROWTH_MIB
    wait_for(lambda: edge.stat("http.grpc.downstream_cx_active") == 0, "the connections of the attackers to be gone")
    assert edge.descriptors < descriptors + CONNECTIONS_TO_GATE
    assert longest_ms < 1000 or not attack.is_reported


@pytest.mark.attack("each attack for 0.2\N{NO-BREAK SPACE}s at Envoy, from addresses beside the callers'", must=MUST)
def test_short_attacks_cost_nobody_else_anything(edge: Edge, attack: Attack) -> None:
    before = edge.descriptors, edge.memory_mib
    served = edge.under(edge.attack(SHORT, *(word for kind, addresses in ATTACKS.items() for word in (kind, addresses[0]))))
    check(edge, served, *before, attack)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ATTACKS)
@pytest.mark.attack("{kind} for 20\N{NO-BREAK SPACE}s at Envoy, from addresses beside the callers'", must=MUST)
def test_an_attack_costs_nobody_else_anything(kind: str, edge: Edge, attack: Attack) -> None:
    before = edge.descriptors, edge.memory_mib
    served = edge.under(*(edge.attack(LONG, kind, address) for address in ATTACKS[kind]))
    check(edge, served, *before, attack)


@pytest.mark.attack("60 calls of 4 MB each without an answer, at an Envoy with a heap of 200 MiB", must=MUST_AT_LAST)
def test_who_fills_the_memory_loses_the_calls_that_do(tmp_path: Path, attack: Attack) -> None:
    with Edge(tmp_path, max_heap_size_bytes=str(200 * 2**20)) as edge:
        before = edge.descriptors, edge.memory_mib
        served = edge.under(edge.attack(SHORT, "hoard", "127.0.0.1"))
        served.refused = [told for told in served.refused if not told.startswith(NEW)]  # until the fullest calls are gone
        check(edge, served, *before, attack)
        assert edge.under(["true"]).refused == []
        assert edge.stat("reset_high_memory_stream.count") > 0
