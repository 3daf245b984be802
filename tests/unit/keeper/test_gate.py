"""The gate is replaced alone when it dies or hangs, drained on request, and ended at the end. No process runs here."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.keeper import gate as module
from bistream.keeper.gate import ASK_TIMEOUT_S, LAST_WORDS_S, LONGEST_DELAY_S, UNREADY_AFTER_S, KeptGate, restart_delay_s
from bistream.keeper.hang_watch import DEAD_AFTER_S, STUCK_AFTER_S, Vitals
from bistream.keeper.host import ServerError
from bistream.keeper.served_models import CLOSING_S
from bistream.keeper.server_process import Interrupted, never
from gateway.settings import GateSettings, Listen, TlsSettings

TIMEOUT_S = 120.0
SETTINGS = GateSettings(grpc=Listen(port=0), http=Listen(port=0), drain_timeout_s=7.0)
OPEN = replace(SETTINGS, grpc=Listen(port=5001), http=Listen(port=5000))


class FakeProcess:
    """stubborn: signals do not end it. Its vitals are those that the rig has for all."""

    def __init__(self, rig: Rig, settings: GateSettings) -> None:
        self.rig, self.settings = rig, settings
        self.code: int | None = None
        self.asked = 0
        self.stubborn = False

    def start(self, should_stop: Callable[[], bool]) -> None:
        if should_stop():
            raise Interrupted
        if self.rig.failures:
            raise self.rig.failures.pop(0)
        self.settings = replace(self.settings, grpc=OPEN.grpc, http=OPEN.http)
        self.rig.started.append(self)

    def exit_code(self) -> int | None:
        return self.code

    def vitals(self) -> Vitals:
        self.rig.beats += self.rig.is_beating or self.rig.wakes_when_asked and self.asked > 0
        self.rig.processor_s += self.rig.is_computing
        return Vitals(self.rig.beats, self.rig.processor_s, is_held=False)

    def ask_to_end(self) -> None:
        self.asked += 1
        if not self.stubborn and self.code is None:
            self.code = 0

    def kill(self) -> None:
        if self.code is None:
            self.code = -9


class Rig:
    """answers: of the gate, in turn; the last one is repeated. A ``TimeoutError`` takes ``silence_s`` of the clock."""

    def __init__(self, *answers: bool | None | type[TimeoutError], settings: GateSettings = SETTINGS) -> None:
        self.started: list[FakeProcess] = []
        self.made_with: list[GateSettings] = []
        self.failures: list[Exception] = []  # to start
        self.answers = list(answers) or [True]
        self.now = 0.0
        self.beats, self.processor_s = 0, 0.0
        self.is_beating, self.is_computing, self.wakes_when_asked = True, False, False
        self.silence_s = ASK_TIMEOUT_S
        self.asked = 0
        self.gate = KeptGate(settings, make=cast(Any, self._make), ask=self._ask, clock=lambda: self.now)

    def _make(self, settings: GateSettings) -> FakeProcess:
        self.made_with.append(settings)
        return FakeProcess(self, settings)

    def _ask(self, settings: GateSettings, timeout_s: float) -> bool | None:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is TimeoutError:
            self.now += self.silence_s
            raise TimeoutError
        return cast("bool | None", answer)

    @property
    def process(self) -> FakeProcess:
        return self.started[-1]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_INTERVAL_S", 0.005)
    monkeypatch.setattr(module, "ASK_INTERVAL_S", 0.0)
    monkeypatch.setattr(module, "FIRST_DELAY_S", 0.005)


@given(st.integers(0, 1000))
def test_restarts_come_more_and_more_seldom_but_never_stop(restarts: int) -> None:
    assert restart_delay_s(0) == 0.0
    assert restart_delay_s(restarts) <= restart_delay_s(restarts + 1) <= LONGEST_DELAY_S


def test_readiness_is_the_gates_own_word() -> None:
    rig = Rig(False, False, True)
    with rig.gate.opened(never):
        assert rig.gate.settings == OPEN and rig.gate.grpc_url == "127.0.0.1:5001" and rig.gate.http_url == "127.0.0.1:5000"
        wait_for(lambda: rig.gate.is_ready)
        assert rig.asked >= 3 and not rig.gate.has_ended
    assert rig.gate.has_ended and rig.process.asked == 1


def test_a_closed_connection_changes_nothing() -> None:
    """The gate's own limits may close it: a sign of life that says nothing about readiness."""
    rig = Rig(None, None, True)
    with rig.gate.opened(never):
        wait_for(lambda: rig.gate.is_ready)
        assert rig.asked >= 3
        rig.answers = [None]
        rig.now += 1000.0
        before = rig.asked
        wait_for(lambda: rig.asked > before)
        assert rig.gate.is_ready and len(rig.started) == 1


def test_a_gate_that_wants_certificates_is_ready_when_it_answers() -> None:
    tls = TlsSettings(Path("c"), Path("k"), Path("ca"))
    rig = Rig(None, settings=replace(SETTINGS, tls=tls))
    with rig.gate.opened(never):
        wait_for(lambda: rig.gate.is_ready)


def test_a_gate_that_dies_is_started_again_with_its_ports(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    with rig.gate.opened(never):
        for number, code in enumerate((-9, 0, 1)):
            wait_for(lambda: rig.gate.is_ready)
            rig.process.code = code
            wait_for(lambda number=number: len(rig.started) == number + 2)  # type: ignore[misc]
    assert rig.made_with == [SETTINGS, OPEN, OPEN, OPEN]
    assert "exit code -9" in caplog.text and "the server goes on" in caplog.text


def test_a_restart_that_fails_is_tried_again_and_its_reason_logged(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    with rig.gate.opened(never):
        kinds = (ServerError, OSError, RuntimeError, BlockingIOError, ServerError)
        rig.failures = [kind(f"Reason {number}.") for number, kind in enumerate(kinds)]
        rig.process.code = -9
        wait_for(lambda: len(rig.started) == 2)
    assert all(f"Reason {number}; restarting" in caplog.text for number in range(5))


def fall_silent(rig: Rig) -> None:
    """No heartbeat and no answer; each question takes ``silence_s`` of the clock."""
    wait_for(lambda: rig.gate.is_ready)
    rig.process.stubborn = True
    rig.answers, rig.is_beating = [TimeoutError], False


@pytest.mark.parametrize(("is_computing", "after_s"), [(False, DEAD_AFTER_S), (True, STUCK_AFTER_S)])
def test_a_gate_whose_loop_stands_still_is_asked_to_end_and_replaced(
    is_computing: bool, after_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig()
    rig.is_computing = is_computing
    with rig.gate.opened(never):
        began = rig.now
        fall_silent(rig)
        wait_for(lambda: rig.process.asked == 1)
        assert after_s <= rig.now - began <= after_s + 2 * ASK_TIMEOUT_S and not rig.gate.is_ready
        wait_for(lambda: _pass(rig, LAST_WORDS_S) or len(rig.started) == 2)
        assert rig.started[0].code == -9 and rig.started[0].asked == 1
        rig.answers, rig.is_beating = [True], True
        wait_for(lambda: rig.gate.is_ready)
    assert "has given no sign of life for" in caplog.text and "restarting the gate" in caplog.text


def test_a_gate_that_comes_to_itself_when_it_is_asked_to_end_has_the_time_of_a_drain() -> None:
    rig = Rig()
    rig.wakes_when_asked = True
    with rig.gate.opened(never):
        fall_silent(rig)
        first = rig.process
        wait_for(lambda: first.asked == 1)
        beats = rig.beats
        wait_for(lambda: rig.beats > beats + 1)  # it has been seen to beat
        rig.now += LAST_WORDS_S + 1.0
        beats = rig.beats
        wait_for(lambda: rig.beats > beats + 1)
        assert first.code is None and len(rig.started) == 1, "it drains"
        first.code = 0
        wait_for(lambda: len(rig.started) == 2)


def test_a_busy_gate_that_answers_nothing_is_not_replaced_but_takes_no_sessions_while_its_loop_stands_still() -> None:
    rig = Rig()
    rig.is_computing = True
    with rig.gate.opened(never):
        fall_silent(rig)
        wait_for(lambda: not rig.gate.is_ready)
        assert UNREADY_AFTER_S <= rig.now < STUCK_AFTER_S
        rig.is_beating = True
        asked = rig.asked
        wait_for(lambda: rig.asked > asked + 100)  # unanswered for far longer than any limit
        rig.answers = [True]
        wait_for(lambda: rig.gate.is_ready)
        assert len(rig.started) == 1 and rig.process.asked == 0
        rig.process.stubborn = False


def test_a_machine_that_stands_still_again_and_again_is_no_loss() -> None:
    rig = Rig()
    rig.silence_s = 1000.0
    with rig.gate.opened(never):
        for _ in range(3):
            fall_silent(rig)
            asked = rig.asked
            wait_for(lambda asked=asked: rig.asked >= asked + 3)  # type: ignore[misc]
            rig.answers = [True]
            wait_for(lambda: rig.gate.is_ready)
        assert len(rig.started) == 1 and rig.process.asked == 0
        rig.process.stubborn = False


def test_a_drain_asks_once_and_no_other_gate_follows() -> None:
    rig = Rig()
    with rig.gate.opened(never):
        wait_for(lambda: rig.gate.is_ready)
        rig.process.stubborn = True
        rig.gate.drain()
        assert not rig.gate.is_ready and not rig.gate.has_ended and rig.process.asked == 1
        rig.process.code = 0
        wait_for(lambda: rig.gate.has_ended)
    assert len(rig.started) == 1 and rig.process.asked == 1


def test_a_gate_that_dies_in_a_drain_is_not_replaced(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    with rig.gate.opened(never):
        rig.process.stubborn = True
        rig.gate.drain()
        rig.process.code = -9
        wait_for(lambda: rig.gate.has_ended)
    assert len(rig.started) == 1 and "while it drained" in caplog.text


def test_a_drain_without_end_is_ended() -> None:
    rig = Rig()
    with rig.gate.opened(never):
        rig.process.stubborn = True
        rig.gate.drain()
        wait_for(lambda: _pass(rig, SETTINGS.drain_timeout_s + CLOSING_S) or rig.gate.has_ended)
    assert rig.process.code == -9


def _pass(rig: Rig, seconds: float) -> bool:
    rig.now += seconds + 1.0
    return False


def test_a_gate_that_does_not_end_is_killed() -> None:
    rig = Rig()
    with rig.gate.opened(never):
        rig.process.stubborn = True
        ticking = threading.Thread(target=lambda: wait_for(lambda: _pass(rig, 1.0) or rig.gate.has_ended))
        ticking.start()
    ticking.join()
    assert rig.process.code == -9 and rig.process.asked >= 1


@pytest.mark.parametrize("error", [ServerError, OSError, ValueError])
def test_the_first_start_fails_with_the_reason(error: type[Exception]) -> None:
    rig = Rig()
    rig.failures = [error("The gate cannot start: no.")]
    with pytest.raises(error, match="cannot start: no"), rig.gate.opened(never):
        pytest.fail("it is not open")
    assert rig.gate.has_ended and not rig.started


def test_the_first_start_can_be_interrupted() -> None:
    rig = Rig()
    with pytest.raises(Interrupted), rig.gate.opened(lambda: True):
        pytest.fail("it is not open")
    assert rig.gate.has_ended
