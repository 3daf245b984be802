#!/usr/bin/env python3
"""Simulates many callers on many servers behind proxies, with failures: who is refused, and how long the first audio takes.

    fleet.py --check                      one server, against what was measured on an H200
    fleet.py                              10,000 callers, 40 servers: every policy; slow servers, a rack that fails, overload, upgrade
    fleet.py --scenarios rack --policies least_request random --callers 5000 --replicas 20 --seed 2

No server runs. The service times are those that were measured on one H200 (benchmarks/_fleet_replica.py); what is simulated is queues,
batches, balancing, admission and failures. First audio counts from the moment a caller wanted a reply, with refusals and failed attempts.
Prints tables; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._common import ROOT, report, table
from benchmarks._fleet import Conversation, Fleet, Network, Setting
from benchmarks._fleet_policies import POLICIES, AdmissionRule

OPEN_DOOR = AdmissionRule(load_target=0.0)
SEEN_CAPACITY = 430.0  # audio seconds per second: where the overloaded H200 stopped admitting (397 sessions at 0.9), docs/log/gpu.md
RANKS, RANK_NAMES = (50, 99, 100), ("p50", "p99", "worst")
HARDWARE = "none: a simulation with service times of one H200"
WARM_S, INCIDENT_S = 12.0, 22.0
FIRST_AUDIO = ROOT / "benchmarks" / "results" / "first-audio-bursts-h200.json"
SHORT_S, LONGER_S = 5.6, 25.6  # audio of the texts there
# Measured with an older version: callers, starts per second -> first audio p50 and p99, ms (benchmarks/results/sessions-h200.json).
REAL_TIME = {(256, 16): (319.6, 356.2), (576, 36): (413.2, 496.7), (768, 48): (571.6, 894.0)}
TEXT_MS = 200.0  # of these, until the words of the first block and the second were there


@dataclass(frozen=True)
class Scenario:
    """phases: name -> (from, to), seconds at which a reply was wanted. incident: what happens, called at the start."""

    until_s: float
    phases: Mapping[str, tuple[float, float]]
    incident: Callable[[Fleet], None] = lambda fleet: None


SLOW = Scenario(27.0, {"steady": (WARM_S, 27.0)})


def around(incident_s: float) -> dict[str, tuple[float, float]]:
    """Replies that were wanted up to 3 s before it are cut or delayed by it."""
    return {"before": (WARM_S, incident_s - 3.0), "failure, 10 s": (incident_s - 3.0, incident_s + 7.0)}


def rack(replicas: int, cold_start_s: float) -> Scenario:
    """A quarter of the servers dies and is back after a cold start."""
    back_s = INCIDENT_S + cold_start_s

    def incident(fleet: Fleet) -> None:
        for number in range(replicas // 4):
            fleet.at(INCIDENT_S, lambda number=number: fleet.die(number, cold_start_s))  # type: ignore[misc]

    phases = {"fewer": (INCIDENT_S + 7.0, back_s), "return, 8 s": (back_s, back_s + 8.0)}
    return Scenario(back_s + 10.0, around(INCIDENT_S) | phases, incident)


def zones(replicas: int) -> Scenario:
    """Two thirds die and do not come back: more callers than the rest carries."""

    def incident(fleet: Fleet) -> None:
        for number in range(2 * replicas // 3 + 1):
            fleet.at(INCIDENT_S, lambda number=number: fleet.die(number, 1e9))  # type: ignore[misc]

    return Scenario(INCIDENT_S + 26.0, around(INCIDENT_S) | {"overload": (INCIDENT_S + 7.0, INCIDENT_S + 23.0)}, incident)


def upgrade(replicas: int, cold_start_s: float) -> Scenario:
    """A quarter of the servers is replaced, a tenth of all at a time."""
    numbers, at_a_time = list(range(replicas // 4)), max(1, replicas // 10)
    rounds = -(-len(numbers) // at_a_time)
    until_s = INCIDENT_S + rounds * (cold_start_s + 8.0)

    def incident(fleet: Fleet) -> None:
        fleet.at(INCIDENT_S, lambda: fleet.drain_in_turn(numbers, at_a_time, cold_start_s))

    return Scenario(until_s, {"before": (WARM_S, INCIDENT_S), "upgrade": (INCIDENT_S, until_s - 3.0)}, incident)


def first_audio_ms(waits: Sequence[tuple[float, float]], begin_s: float, end_s: float, ranks: Sequence[int] = RANKS) -> list[float]:
    """Of the replies that were wanted in this time; empty without any."""
    found = [1000 * wait for at_s, wait in waits if begin_s <= at_s < end_s]
    return [round(float(np.percentile(found, rank)), 1) for rank in ranks] if found else []


def run(setting: Setting, scenario: Scenario) -> dict[str, Any]:
    fleet = Fleet(setting)
    scenario.incident(fleet)
    counts = fleet.run(scenario.until_s)
    attempts = counts.admitted + counts.refused
    return {
        "policy": setting.policy,
        "admission": setting.admission.name,
        "wanted": counts.wanted,
        "refused_share": round(counts.refused / attempts, 5),
        "lost": counts.lost,
        "gap_share": round(counts.with_gap / max(1, counts.completed), 5),
        "most_open_sessions": counts.most_open,
        "first_audio_ms": {
            name: dict(zip(RANK_NAMES, first_audio_ms(counts.first_audio, *span), strict=False)) for name, span in scenario.phases.items()
        },
    }


def show(name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    print(f"\n{name}: first audio p50, p99, worst (ms)")
    phases = list(rows[0]["first_audio_ms"])
    lines: list[list[object]] = [["policy", "admission", "refused", "lost", "gaps", "most open", *phases]]
    for row in rows:
        refused, gaps = (f"{100 * row[share]:.2f} %" for share in ("refused_share", "gap_share"))
        times = (" ".join(f"{value:.0f}" for value in row["first_audio_ms"][phase].values()) for phase in phases)
        lines.append([row["policy"], row["admission"], refused, row["lost"], gaps, row["most_open_sessions"], *times])
    table(lines)


def closed_loop(callers: int, reply_s: float, replies: int) -> list[float]:
    """All begin at once, as in the measurement. First audio p50 and p99, ms; audio seconds per second."""
    talk = Conversation(reply_s, spread=0.0, pause_s=0.0, speech_per_text_s=0.0, hears=False, begin_s=0.0, replies=replies)
    counts = Fleet(Setting(callers, 1, admission=OPEN_DOOR, conversation=talk, network=Network(proxies=1))).run(1e4)
    return [*first_audio_ms(counts.first_audio, 0.0, 1e4, (50, 99)), round(counts.audio_s / counts.last_audio_at_s, 1)]


def real_time(callers: int, per_s: int) -> list[float]:
    """Callers who listen, from the 17th second on; the text is there at once, and ``TEXT_MS`` are added."""
    talk = Conversation(callers / per_s, spread=0.0, pause_s=0.0, speech_per_text_s=1e6)
    counts = Fleet(Setting(callers, 1, admission=OPEN_DOOR, conversation=talk, network=Network(proxies=1))).run(45.0)
    return [TEXT_MS + value for value in first_audio_ms(counts.first_audio, 17.0, 45.0, (50, 99))]


def overload() -> dict[str, float]:
    """40 starts of longer texts per second for 25 s, who give up when they are refused, at the containers' ``admission_load``."""
    talk = Conversation(LONGER_S, spread=0.0, speech_per_text_s=0.0, retry_s=0.0, begin_s=25.0, replies=1)
    counts = Fleet(Setting(1014, 1, conversation=talk, network=Network(proxies=1))).run(1e4)
    p50, p99 = first_audio_ms(counts.first_audio, 0.0, 1e4, (50, 99))
    return {"admitted": counts.admitted, "admitted_p50_ms": p50, "admitted_p99_ms": p99, "gaps": counts.with_gap}


def check() -> dict[str, Any]:
    """One server against the measurements."""
    measured = json.loads(FIRST_AUDIO.read_text(encoding="utf-8"))["metrics"]
    runs = [run for run in measured["runs"] if run["load"].startswith("closed") and run["text"] == "whole" and run["voice"] == "registered"]
    rows: list[list[object]] = [["closed loop", "measured p50, p99 ms, audio s/s", "simulated"]]
    found: dict[str, Any] = {"closed_loop": [], "real_time": []}
    for number, run in enumerate(runs):
        callers, is_short = int(run["load"].split()[1]), number < len(measured["closed_loop_ms"]) + 1
        reply_s, audio = (SHORT_S if is_short else LONGER_S), run["first_audio_client_ms"]
        seen = [round(audio["p50"], 1), round(audio["p99"], 1), run["audio_s_per_s"]]
        simulated = closed_loop(callers, reply_s, run["sessions"] // callers)
        rows.append([f"{callers}, {reply_s} s", seen, simulated])
        found["closed_loop"].append({"callers": callers, "reply_s": reply_s, "measured": seen, "simulated": simulated})
    table(rows)
    rows = [["real time", "measured p50, p99 ms", "simulated"]]
    for (callers, per_s), times in REAL_TIME.items():
        simulated = real_time(callers, per_s)
        rows.append([f"{callers}, {per_s} per s", list(times), simulated])
        found["real_time"].append({"callers": callers, "starts_per_s": per_s, "measured": times, "simulated": simulated})
    table(rows)
    found["overload"] = overload()
    table(
        [
            ["overload", *found["overload"]],
            ["measured", *(measured["overload"][key] for key in found["overload"])],
            ["simulated", *found["overload"].values()],
        ]
    )
    return found


def simulate(options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    base = Setting(options.callers, options.replicas, conversation=Conversation(pause_s=options.pause_s), seed=options.seed)
    policies = [replace(base, policy=policy) for policy in options.policies]
    limits = [OPEN_DOOR, AdmissionRule(), AdmissionRule(capacity=SEEN_CAPACITY), *(AdmissionRule(count, 0.0) for count in (512, 256, 128))]
    plans = {
        "slow": (SLOW, [replace(setting, slow_replicas=options.replicas // 4) for setting in policies]),
        "rack": (rack(options.replicas, options.cold_start_s), policies),
        "zones": (zones(options.replicas), [replace(policies[0], admission=rule) for rule in limits]),
        "upgrade": (upgrade(options.replicas, options.cold_start_s), policies[:1]),
    }
    results: dict[str, list[dict[str, Any]]] = {}
    for name in options.scenarios:
        scenario, settings = plans[name]
        results[name] = [run(setting, scenario) for setting in settings]
        show(name, results[name])
    return results


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare one simulated server with the measurements, and end")
    parser.add_argument("--callers", type=int, default=10_000)
    parser.add_argument("--replicas", type=int, default=40, help="servers, at least 4")
    parser.add_argument("--pause-s", type=float, default=1.0, help="between a reply and the next one, on average; default %(default)s")
    parser.add_argument("--cold-start-s", type=float, default=22.0, help="until a server that died is ready; default %(default)s")
    names = ["slow", "rack", "zones", "upgrade"]
    parser.add_argument("--scenarios", nargs="+", choices=names, default=names)
    parser.add_argument("--policies", nargs="+", choices=list(POLICIES), default=list(POLICIES))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write the result there, e.g. benchmarks/results/fleet.json")
    options = parser.parse_args(arguments)
    if options.callers < 1 or options.replicas < 4 or options.pause_s < 0 or options.cold_start_s <= 0:
        parser.error("--callers must be 1 or more, --replicas 4 or more, --pause-s 0 or more, --cold-start-s above 0")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    gc.disable()  # a simulation makes no cycles
    metrics = check() if options.check else simulate(options)
    config = {"network": asdict(Network()), "conversation": asdict(Conversation(pause_s=options.pause_s)), "seed": options.seed}
    report("fleet", config, metrics, options.out, HARDWARE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
