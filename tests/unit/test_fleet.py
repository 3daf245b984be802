"""The fleet simulation: callers are conserved, no dead replica speaks, a seed decides all, one replica agrees with queueing theory."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import fleet
from benchmarks._fleet import Conversation, Counts, Fleet, Network, Setting
from benchmarks._fleet_policies import POLICIES, AdmissionRule, ProxyView, choose
from benchmarks._fleet_replica import Batch, Replica, ServiceTimes, interpolate
from benchmarks._fleet_session import VOICE_TOKENS, WITHHELD_TOKENS, Session
from bistream.config import RuntimeConfig

SMALL = Setting(callers=60, replicas=4)
NO_TIME = ((1, 0.0),)
INSTANT = ServiceTimes(way_s=0.0, start_s=0.0, first_tokens_s=NO_TIME, step_s=NO_TIME, transit_s=NO_TIME, batch_s=NO_TIME)
OPEN_DOOR = AdmissionRule(load_target=0.0)


# Decisions


def view(ready: list[int], open_sessions: list[int], seed: int = 0) -> ProxyView:
    return ProxyView(ready, open_sessions, random.Random(seed))


@given(
    policy=st.sampled_from(sorted(POLICIES)),
    open_sessions=st.lists(st.integers(0, 5), min_size=1, max_size=8),
    data=st.data(),
)
def test_only_ready_replicas_are_chosen(policy: str, open_sessions: list[int], data: st.DataObject) -> None:
    ready = sorted(data.draw(st.sets(st.integers(0, len(open_sessions) - 1))))
    proxy = view(ready, open_sessions, data.draw(st.integers(0, 99)))
    proxy.avoid = data.draw(st.one_of(st.none(), st.integers(0, len(open_sessions) - 1)))
    chosen = choose(policy, proxy)
    assert (chosen is None) == (not ready)
    if chosen is not None:
        assert chosen in ready and (chosen != proxy.avoid or len(ready) == 1)
        if policy == "least_request" and proxy.avoid is None:
            assert open_sessions[chosen] == min(open_sessions[each] for each in ready)


def test_round_robin_takes_turns_and_two_choices_never_the_fullest_of_two() -> None:
    proxy = view([0, 1, 2], [9, 9, 9])
    assert [choose("round_robin", proxy) for _ in range(6)] == [1, 2, 0, 1, 2, 0]
    lopsided = view([0, 1], [50, 0])
    picks = [choose("two_choices", lopsided) for _ in range(400)]
    assert 60 <= picks.count(0) <= 140, "the full one only where both draws hit it: one in four"


@pytest.mark.parametrize(
    "rule, name",
    [
        (OPEN_DOOR, "none"),
        (AdmissionRule(), "load 0.9"),
        (AdmissionRule(capacity=430.0), "load 0.9 of 430"),
        (AdmissionRule(64, 0.0), "64 sessions"),
        (AdmissionRule(64), "64 sessions, load 0.9"),
    ],
)
def test_rules_have_names(rule: AdmissionRule, name: str) -> None:
    assert rule.name == name


@given(max_sessions=st.integers(0, 40), target=st.sampled_from([0.0, 0.5, 0.9]), capacity=st.floats(0.5, 60.0))
def test_a_replica_promises_no_more_than_its_rule_allows(max_sessions: int, target: float, capacity: float) -> None:
    """Sessions that have audio promise a second per second each; the first one is always taken."""
    replica, now_s = Replica(0, admission=AdmissionRule(max_sessions, target, capacity)), 0.0
    for caller in range(100):
        now_s += 1.0  # the admission counts again after 0.2 s
        session = Session(caller, 0, now_s, now_s, 500)
        if not replica.admits(session, now_s):
            break
        replica.begin(session, now_s, INSTANT)
        session.sent, session.audio_ends_at_s = 25, math.inf
    most = min(max_sessions or 100, max(1, math.floor(target * capacity + 1e-9)) if target else 100)
    assert len(replica.live) == most


# A session


@given(total=st.integers(25, 800), is_whole=st.booleans())
def test_hops_cover_a_reply_and_end_where_the_flow_stores_its_state(total: int, is_whole: bool) -> None:
    session, hops = Session(0, 0, 0.0, 0.0, total, is_whole), 0
    while session.sent < total:
        tokens = session.next_tokens()
        if hops:
            assert tokens / 25 <= session.computed_chunks(tokens) <= (tokens + 24 + 3) / 25
        session.receive(tokens, 0.0)
        hops += 1
        if hops > 2 and session.sent < total:
            assert (VOICE_TOKENS + session.sent - 3) % 25 == 0
    assert session.sent == total and session.next_tokens() == 0


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


# A replica


def batches(replica: Replica, now_s: float = 0.0) -> list[Batch]:
    """All that is computed until nothing waits."""
    found: list[Batch] = []
    while (work := replica.work(now_s, ServiceTimes())) is not None:
        seconds, done = work
        now_s += seconds
        if done is not None:
            replica.done(done, now_s)
            found.append(done)
    return found


def test_first_hops_go_first_then_the_nearest_deadline() -> None:
    replica = Replica(0)
    late, soon = (Session(caller, 0, 0.0, 0.0, 100, sent=50, audio_ends_at_s=end) for caller, end in ((1, 9.0), (2, 3.0)))
    for session in (late, soon, Session(3, 0, 0.0, 0.0, 100)):
        replica.push(session, 25, 0.0)
    assert [hop.item.caller for batch in batches(replica) for hop in batch.hops] == [3, 2, 1]


def test_a_calm_batch_gives_way_to_a_first_hop() -> None:
    replica, times = Replica(0), ServiceTimes()
    calm, newcomer = Session(1, 0, 0.0, 0.0, 100, sent=50, audio_ends_at_s=30.0), Session(2, 0, 0.0, 0.0, 100)
    replica.push(calm, 25, 0.0)
    step = replica.work(0.0, times)
    assert step is not None and step[1] is None
    replica.push(newcomer, 18, step[0])
    assert [batch.hops[0].item.caller for batch in batches(replica, step[0])] == [2, 1]


@given(st.lists(st.integers(1, 100), min_size=1, max_size=200))
def test_batches_hold_every_hop_once(sizes: list[int]) -> None:
    replica = Replica(0)
    for caller, tokens in enumerate(sizes):
        replica.push(Session(caller, 0, 0.0, 0.0, 500, sent=18 * (caller % 2)), tokens, 0.0)
    found = batches(replica)
    assert all(1 <= len(batch.hops) <= 64 for batch in found)
    assert sorted(hop.item.caller for batch in found for hop in batch.hops) == list(range(len(sizes)))


def test_interpolation_meets_the_measured_points() -> None:
    points = ((1.0, 10.0), (3.0, 30.0), (5.0, 20.0))
    assert [interpolate(points, at) for at in (0, 1, 2, 3, 4, 5, 9)] == [10, 10, 20, 30, 25, 20, 20]


# A fleet


def open_sessions(found: Fleet) -> int:
    return sum(len(replica.live) for replica in found.replicas)


@settings(max_examples=10, deadline=None)
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


def waits_of(setting: Setting, until_s: float, from_s: float = 0.0) -> tuple[Counts, list[float]]:
    counts = Fleet(setting).run(until_s)
    return counts, [wait for at_s, wait in counts.first_audio if at_s >= from_s]


def test_a_seed_decides_everything() -> None:
    def story(seed: int) -> object:
        found = Fleet(replace(SMALL, seed=seed, policy="two_choices"))
        found.at(4.0, lambda: found.die(1, 3.0))
        return found.run(12.0)

    assert story(1) == story(1) != story(2)


def test_a_caller_alone_waits_for_the_parts_of_the_first_audio() -> None:
    talk = Conversation(speech_per_text_s=0.0)
    counts, waits = waits_of(Setting(callers=1, replicas=1, conversation=talk), 30.0)
    times = ServiceTimes()
    stages = (times.way_s, times.start_s, *(points[0][1] for points in (times.first_tokens_s, times.batch_s, times.transit_s)))
    assert set(np.round(waits, 9)) == {round(sum(stages), 9)}
    assert counts.with_gap == 0 and counts.refused == 0


def test_text_in_pieces_delays_the_first_audio_by_its_first_words() -> None:
    (_, whole), (_, pieces) = (
        waits_of(Setting(callers=1, replicas=1, conversation=Conversation(speech_per_text_s=pace)), 30.0) for pace in (0.0, 2.0)
    )
    assert pieces[0] > whole[0] and pieces[0] == pytest.approx(18 * 0.04 / 2.0 + 0.0146 + 0.0037)


@pytest.mark.slow
def test_one_replica_queues_as_the_formula_of_pollaczek_and_khinchine_says() -> None:
    """M/D/1: starts of 10 ms, near-Poisson arrivals of many callers; the mean wait is rho s / (2 (1 - rho))."""
    service_s, callers, pause_s = 0.010, 3000, 50.0
    talk = Conversation(reply_s=1.0, spread=0.0, pause_s=pause_s, speech_per_text_s=0.0, hears=False)
    setting = Setting(callers, 1, admission=OPEN_DOOR, times=replace(INSTANT, start_s=service_s), conversation=talk)
    _, waits = waits_of(setting, 260.0, 60.0)
    rate = len(waits) / 200.0
    load = rate * service_s
    assert 0.5 < load < 0.7
    assert np.mean(waits) == pytest.approx(service_s + load * service_s / (2 * (1 - load)), rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("places", [4, 8])
def test_one_replica_refuses_as_the_formula_of_engset_says(places: int) -> None:
    """M callers who give up when refused; insensitive to the distribution of the service, here deterministic."""
    callers, pause_s, tokens_s = 40, 2.0, 0.4
    times = replace(INSTANT, first_tokens_s=((1, tokens_s),), step_s=((1, tokens_s / 18 / (1 + RuntimeConfig().calm_pause)),))
    talk = Conversation(reply_s=18 * 0.04, spread=0.0, pause_s=pause_s, speech_per_text_s=0.0, hears=False, retry_s=0.0)
    held_s = tokens_s * 25 / 18  # replies have at least a second, 25 tokens
    rule = AdmissionRule(places, 0.0)
    counts, _ = waits_of(Setting(callers, 1, admission=rule, times=times, conversation=talk), 1500.0)
    offered = held_s / pause_s
    terms = [math.comb(callers - 1, count) * offered**count for count in range(places + 1)]
    assert counts.given_up == counts.refused
    assert counts.refused / (counts.refused + counts.admitted) == pytest.approx(terms[-1] / sum(terms), rel=0.06)


def test_a_death_loses_its_sessions_and_an_upgrade_none() -> None:
    setting = Setting(callers=400, replicas=4)
    dying, draining = Fleet(setting), Fleet(setting)
    dying.at(10.0, lambda: dying.die(0, 5.0))
    draining.at(10.0, lambda: draining.drain_in_turn([0, 1, 2, 3], 1, 2.0))
    dying.run(9.99)
    held = len(dying.replicas[0].live)
    assert dying.run(40.0).lost == held > 0
    counts = draining.run(60.0)
    assert counts.lost == 0 and counts.no_server == 0
    assert [replica.life for replica in draining.replicas] == [1, 1, 1, 1] and all(replica.accepts for replica in draining.replicas)


@pytest.mark.slow
def test_fewest_sessions_keeps_the_fullest_replica_emptier_than_chance_does() -> None:
    setting = replace(SMALL, callers=800, network=Network(proxies=1))
    fullest = {policy: Fleet(replace(setting, policy=policy)).run(15.0).most_open for policy in ("least_request", "random")}
    assert fullest["least_request"] < fullest["random"]


@pytest.mark.slow
def test_fewest_sessions_spares_a_slow_replica_and_turns_do_not() -> None:
    setting = replace(SMALL, callers=1000, slow_replicas=1, network=Network(proxies=1), conversation=Conversation(speech_per_text_s=0.0))
    late = {
        policy: float(np.quantile(waits_of(replace(setting, policy=policy), 16.0, 8.0)[1], 0.99))
        for policy in ("least_request", "round_robin")
    }
    assert late["least_request"] < late["round_robin"]


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


@pytest.mark.parametrize("words", ["--callers 0", "--replicas 3", "--pause-s -1", "--cold-start-s 0", "--policies fastest"])
def test_impossible_arguments_are_refused(words: str) -> None:
    with pytest.raises(SystemExit):
        fleet.main(words.split())
