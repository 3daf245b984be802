"""What one client may take of what all share, and what it may write into the log. With a clock of the test."""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.errors import BusyError
from interfaces.audio.formats import OutputFormat
from interfaces.core.caller import Caller
from interfaces.core.quiet_log import WINDOW_S, Lines, QuietLog
from interfaces.core.servers import Servers
from interfaces.core.service import SpeechService
from interfaces.core.shares import BURST_S, MAX_PAUSE_S, Places, ShareError, Starts
from interfaces.core.voices import VoiceStore
from interfaces.protocols.whole_text import WholeText
from interfaces.settings import InterfaceLimits
from interfaces.web.exchange import ExchangeResponse
from tests.clock import run_at_once
from tests.unit.interfaces.rig import ANNA

CALLERS = st.builds(Caller, st.sampled_from([None, "a", "b"]), st.sampled_from(["10.0.0.1", "10.0.0.2", "10.0.0.3"]))


@given(whole=st.integers(1, 12), share=st.sampled_from([0.25, 0.5, 1.0]), moves=st.lists(st.tuples(CALLERS, st.booleans()), max_size=60))
def test_places_are_never_more_than_the_whole_nor_a_holders_more_than_its_share(
    whole: int, share: float, moves: list[tuple[Caller, bool]]
) -> None:
    places, taken = Places("places", whole, share), list[Caller]()
    for caller, takes in moves:
        if not takes and taken:
            places.give_back(taken.pop().holders)
            continue
        most = max(1, int(whole * share))
        is_full = len(taken) == whole or any(sum(holder in one.holders for one in taken) >= most for holder in caller.holders)
        try:
            places.take(caller.holders)
        except BusyError as error:
            assert is_full and error.retry_after_s == 1.0
        else:
            assert not is_full
            taken.append(caller)
        assert places.taken == len(taken)
    for caller in taken:
        places.give_back(caller.holders)
    assert places.taken == 0 and not places._by_holder


@given(gaps=st.lists(st.sampled_from([0.0, 0.01, 0.5, 3.0]), min_size=1, max_size=80), rate=st.sampled_from([1.0, 4.0]))
def test_starts_keep_to_the_rate_and_never_delay_another_client(gaps: list[float], rate: float) -> None:
    now, granted = [0.0], list[float]()
    starts = Starts(rate, lambda: now[0])
    for gap in gaps:
        now[0] += gap
        try:
            starts.take(("address 10.0.0.1",))
            granted.append(now[0])
        except ShareError as error:
            assert 0 < error.pause_s <= MAX_PAUSE_S and error.retry_after_s is not None and error.retry_after_s <= BURST_S + 1 / rate + 1
        starts.take(("address 10.0.0.2",)) if gap >= 0.5 else None
    for first, last in itertools.combinations(granted, 2):
        inside = sum(first <= one <= last for one in granted)
        assert inside <= rate * (BURST_S + last - first) + 1


def test_a_client_that_waits_as_it_was_told_is_served() -> None:
    now = [0.0]
    starts = Starts(4.0, lambda: now[0])
    for _ in range(100):
        try:
            starts.take(("API key a", "address 10.0.0.1"))
        except ShareError as error:
            now[0] += error.retry_after_s or 0.0
            starts.take(("API key a", "address 10.0.0.1"))


@given(gaps=st.lists(st.sampled_from([0.0, 1.0, 11.0]), max_size=60), most=st.integers(1, 3))
def test_lines_of_a_client_are_few_and_none_is_forgotten(gaps: list[float], most: int) -> None:
    now, told, written = [0.0], 0, list[float]()
    lines = Lines(most, lambda: now[0])
    for gap in gaps:
        now[0] += gap
        left_out = lines.take("10.0.0.1")
        if left_out is not None:
            written.append(now[0])
            told += left_out
    assert all(sum(first <= one < first + WINDOW_S for one in written) <= 2 * most for first in written)
    now[0] += WINDOW_S
    told += lines.take("10.0.0.1") or 0
    assert told + len(written) == len(gaps)


def test_a_warning_says_how_many_were_left_out(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    log = QuietLog(logging.getLogger("interfaces"), lambda: now[0])
    for _ in range(5):
        log.warn("10.0.0.1", "Too much.")
    log.warn("10.0.0.2", "Too much.")
    now[0] = WINDOW_S
    log.warn("10.0.0.1", "Too much.")
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "the client 10.0.0.1: Too much.",
        "the client 10.0.0.2: Too much.",
        "the client 10.0.0.1: Too much. (4 such lines were left out)",
    ]


def test_a_client_that_begins_too_many_waits_for_its_answer() -> None:
    """Else one that does not heed it would ask again at once."""

    async def refused() -> tuple[int, float]:
        service, caller = SpeechService(Servers(()), VoiceStore((ANNA,)), InterfaceLimits(starts_per_second=0.01)), Caller(None, "10.0.0.1")
        service.starts.take(caller.holders)  # all that may begin at once
        answers: list[Any] = []

        async def send(message: Any) -> None:
            answers.append(message)

        response = ExchangeResponse(service, caller, WholeText("anna", ["Hello."], OutputFormat(), {}), "audio/pcm")
        await response({"type": "http"}, asyncio.Event().wait, send)
        return answers[0]["status"], asyncio.get_running_loop().time()

    assert run_at_once(refused()) == (429, MAX_PAUSE_S)
