"""Many sessions, one after the other and together, while memory, descriptors, threads and shared memory of every process are sampled.

Each must grow by no more than a bound over the run, after a warm-up in which caches and pools fill: the bound is on the slope of a line
through the samples, times the sessions, so that a single high sample does not decide.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.sounds import speech_like
from tests.triton.attacks.gauges import wait_free
from tests.triton.attacks.sizes import Sizes
from tests.triton.attacks.test_long_inputs import LONGEST
from tests.triton.callers import Caller
from tests.triton.processes import MEASURES, Usage, described, named, replaced, usages
from tests.triton.reliability import Attack, Table
from tests.triton.served import END_S, Served

BLOCK = 8  # sessions between two samples: half one after the other, half together
TOGETHER = 4
WARM_UP = 0.3  # part of the samples
VOICES = 12  # more than the server's cache of voices holds, so that recordings are analysed all the time
TEXTS = ("Yes.", "Tea.", "Oh.")
# Growth over the run that is no leak. Memory: arenas of allocators, pages of pools that are used for the first time, the list of ended
# sessions. Shared memory: Triton's files grow in steps of 1 MiB to what the most requests at a time need, and never shrink.
ALLOWED = Usage(rss=16.0, pss=16.0, descriptors=3.0, threads=3.0, shared=4.0)
LIMIT_S = float(os.environ.get("BISTREAM_SOAK_SECONDS", "720"))  # then it ends early, and says so


def speak(served: Served, number: int) -> str:
    """One session: whole, in pieces, dropped at once, or dropped while it speaks the longest text."""
    voice: dict[str, Any] = {
        "reference_wav": speech_like(seed=number % VOICES).reshape(1, -1),
        "reference_wav_len": 16000,
        "reference_text": "A reference.",
    }
    kind = number % 8
    text = LONGEST if number % 16 == 15 else TEXTS[number % 3]
    caller = Caller(served.grpc_url, voice, text, is_end=kind not in (5, 6, 7))
    if kind == 7:
        if text is LONGEST:
            caller.wait_audio()
        caller.close()
        return "dropped"
    if kind in (5, 6):
        caller.say(" So.")
    assert caller.wait_end(END_S)
    caller.close()
    return caller.outcome


def run_block(served: Served, first: int, pool: ThreadPoolExecutor) -> list[str]:
    half = first + BLOCK // 2
    one_by_one = [speak(served, number) for number in range(first, half)]
    return one_by_one + list(pool.map(lambda number: speak(served, number), range(half, first + BLOCK)))


def growth(samples: list[dict[str, Usage]], name: str, measure: str) -> float:
    """Slope of the line through the samples, times their number."""
    series = [getattr(sample[name], measure) for sample in samples]
    return float(np.polyfit(np.arange(len(series)), series, 1)[0] * (len(series) - 1))


@pytest.mark.attack(
    "soak through the gate: sessions whole, in pieces and dropped, some with the longest text; "
    "half of them one after the other, half together",
    must=f"after the first {WARM_UP:.0%}, no process grows by more than {ALLOWED.rss:g} MiB, {ALLOWED.descriptors:g} descriptors, "
    f"{ALLOWED.threads:g} threads or {ALLOWED.shared:g} MiB of shared memory (slope times sessions); nothing is held at the end",
)
def test_many_sessions_leave_nothing(busy: Served, sizes: Sizes, attack: Attack) -> None:
    before, began = named(busy.keeper.pid), time.monotonic()
    counts: Counter[str] = Counter()
    samples: list[dict[str, Usage]] = []
    with ThreadPoolExecutor(2 * TOGETHER) as pool:  # pages of the flow's pool that are used for the first time are no growth
        attack.got(pool.map(lambda number: speak(busy, number), range(2 * TOGETHER)))
    with ThreadPoolExecutor(TOGETHER) as pool:
        while counts.total() < sizes.soak_sessions and time.monotonic() - began < LIMIT_S:
            counts.update(run_block(busy, counts.total(), pool))
            samples.append(usages(busy.keeper.pid))
    attack.got(counts.elements())
    attack.processes = described(before, named(busy.keeper.pid))
    attack.remarks.append(
        f"{time.monotonic() - began:.0f} s" + ("" if counts.total() >= sizes.soak_sessions else ", ended by its time limit")
    )
    warm = samples[int(WARM_UP * len(samples)) :]
    grown = {(name, measure): growth(warm, name, measure) for name in warm[0] for measure in MEASURES}
    attack.tables.append(table(warm, grown, counts.total()))
    assert set(counts) == {"audio", "dropped"}
    wait_free(busy)
    assert replaced(before, named(busy.keeper.pid)) == []
    assert {key: size for key, size in grown.items() if size > getattr(ALLOWED, key[1])} == {}


def table(warm: list[dict[str, Usage]], grown: dict[tuple[str, str], float], sessions: int) -> Table:
    """Each measure at the end of the warm-up, at the end, and its slope for 1,000 sessions, unless that is less than 0.05."""
    measured = (len(warm) - 1) * BLOCK

    def cell(name: str, measure: str) -> str:
        ends = (f"{getattr(one[name], measure):.0f}" for one in (warm[0], warm[-1]))
        slope = round(grown[name, measure] * 1000 / measured, 1)
        return " → ".join(dict.fromkeys(ends)) + (f" ({slope:+.1f})" if slope else "")

    title = f"Soak: what each process held from session {sessions - measured} to {sessions} (slope for 1,000 sessions, unless 0)"
    columns = ("process", "resident MiB", "proportional MiB", "descriptors", "threads", "shared MiB")
    return Table(title, columns, [[name, *(cell(name, measure) for measure in MEASURES)] for name in sorted(warm[0])])
