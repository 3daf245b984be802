"""The fleet simulation: callers are conserved, no dead replica speaks, listeners hear all audio, and a measured server is reproduced."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import fleet
from benchmarks._fleet import Fleet, Network, Setting
from benchmarks._fleet_policies import POLICIES, AdmissionRule
from benchmarks._fleet_session import WITHHELD_TOKENS, Session

SMALL = Setting(callers=60, replicas=4)
OPEN_DOOR = AdmissionRule(load_target=0.0)


# A session


@given(total=st.integers(25, 800), delays=st.lists(st.floats(0.0, 3.0), min_size=100, max_size=100))
def test_a_listener_hears_all_audio_and_every_silence(total: int, delays: list[float]) -> None:
    session, now_s, played_s = Session(0, 0, 0.0, 0.0, total), 0.0, 0.0
    for delay_s in delays:
        if session.sent == total:
            break
        now_s += delay_s
        session.receive(session.next_tokens(), now_s)
    assert session.first_audio_at_s is not None
    played_s = session.audio_ends_at_s - session.first_audio_at_s - session.silent_s
    heard = total if session.sent == total else session.sent - WITHHELD_TOKENS
    assert played_s == pytest.approx(heard * 0.04, abs=1e-6)


# A fleet


def open_sessions(found: Fleet) -> int:
    return sum(len(replica.live) for replica in found.replicas)


@given(
    policy=st.sampled_from(sorted(POLICIES)),
    rule=st.sampled_from([OPEN_DOOR, AdmissionRule(3, 0.0), AdmissionRule(capacity=8.0)]),
    deaths=st.lists(st.tuples(st.floats(0.0, 12.0), st.integers(0, 3), st.floats(0.1, 9.0)), max_size=4),
    drains=st.booleans(),
    proxies=st.integers(1, 3),
    seed=st.integers(0, 5),
)
def test_callers_are_conserved_and_the_dead_do_not_speak(
    policy: str, rule: AdmissionRule, deaths: list[tuple[float, int, float]], drains: bool, proxies: int, seed: int
) -> None:
    found = Fleet(replace(SMALL, policy=policy, admission=rule, seed=seed, network=Network(proxies=proxies)))
    for at_s, number, back_s in deaths:
        found.at(at_s, lambda number=number, back_s=back_s: found.die(number, back_s))  # type: ignore[misc]
    if drains:
        found.at(3.0, lambda: found.drain_in_turn([2, 3], 1, 2.0))
    for until_s in range(1, 21):
        counts = found.run(float(until_s))
        assert counts.admitted == counts.completed + counts.lost + open_sessions(found)
        assert len({session.caller for replica in found.replicas for session in replica.live}) == open_sessions(found) <= SMALL.callers
        for replica in found.replicas:
            assert replica.is_up or not (replica.live or replica.queue or replica.started or replica.is_computing)
            assert not rule.max_sessions or len(replica.live) <= rule.max_sessions
        for number in range(SMALL.replicas):
            assert sum(proxy.open[number] for proxy in found.proxies) == len(found.replicas[number].live)
    assert len(counts.first_audio) <= counts.admitted and all(wait > 0.0 for _, wait in counts.first_audio)


@pytest.mark.slow
def test_the_measured_closed_loop_is_reproduced() -> None:
    """The median first audio within 25 %, audio seconds per second within 20 % of what an H200 did (fleet.py --check shows all)."""
    runs = json.loads(fleet.FIRST_AUDIO.read_text(encoding="utf-8"))["metrics"]["runs"]
    for run in runs[3:6]:
        p50, _, rate = fleet.closed_loop(int(run["load"].split()[1]), fleet.SHORT_S, 4)
        assert p50 == pytest.approx(run["first_audio_client_ms"]["p50"], rel=0.25)
        assert rate == pytest.approx(run["audio_s_per_s"], rel=0.2)


def test_the_command_line_writes_its_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "fleet.json"
    words = "--callers 40 --replicas 4 --policies random --scenarios rack zones upgrade --cold-start-s 1 --out"
    assert fleet.main([*words.split(), str(out)]) == 0
    result = json.loads(out.read_text(encoding="utf-8"))
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == result and result["name"] == "fleet"
    assert {name: len(rows) for name, rows in result["metrics"].items()} == {"rack": 1, "zones": 6, "upgrade": 1}
    assert result["metrics"]["upgrade"][0]["lost"] == 0
