"""What the keeper does about a dead model process: load it anew, or restart the server and say whose sessions are lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bistream.keeper import server_watch
from bistream.keeper.hangs import Hangs
from bistream.keeper.host import ServerError
from bistream.keeper.model_requests import RequestError
from bistream.keeper.server_process import TritonServer
from bistream.keeper.server_watch import LOAD_ATTEMPTS, MAX_RELOADS, OTHERS_PATIENCE_S, Fault, ServerWatch
from tests.triton.conftest import wait_for

WAIT_S = 120.0


class FakeServer:
    """A server with models. load_errors: raised by the next loads. loading: a load waits for it."""

    def __init__(self) -> None:
        self.code: int | None = None
        self.dying: list[str] = []
        self.calls: list[str] = []
        self.load_errors: list[ServerError] = []
        self.loading = threading.Event()
        self.loading.set()
        self.loaded = threading.Semaphore(0)

    @property
    def models(self) -> FakeServer:
        return self

    def exit_code(self) -> int | None:
        return self.code

    def take_dead(self) -> list[str]:
        dead, self.dying = self.dying, []
        return dead

    def unload(self, model: str) -> None:
        self.calls.append(f"unload {model}")

    def load(self, model: str) -> None:
        assert self.loading.wait(WAIT_S)
        self.calls.append(f"load {model}")
        self.loaded.release()
        if self.load_errors:
            raise self.load_errors.pop(0)


@contextmanager
def watching(
    server: FakeServer,
    probe: Callable[[Callable[[], bool]], None] = lambda stop: None,
    interval_s: float = 0.0,
    hangs: Any = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[ServerWatch]:
    watch = ServerWatch(cast(TritonServer, server), probe, interval_s, clock, cast(Hangs | None, hangs))
    try:
        yield watch
    finally:
        watch.stop()


def wait_for_fault(watch: ServerWatch) -> Fault:
    wait_for(lambda: watch.look() is not None, "a fault")
    assert watch.fault is not None
    return watch.fault


@pytest.mark.parametrize("model", ["llm_bistream", "token2wav"])
def test_a_dead_process_with_sessions_is_a_fault_that_names_it_and_the_end_of_the_server_comes_before(model: str) -> None:
    server = FakeServer()
    with watching(server) as watch:
        assert watch.look() is None
        server.dying = [model]
        patience_s = OTHERS_PATIENCE_S if model == "llm_bistream" else 0.0
        assert watch.look() == Fault(f"The process of a model has died ({model})", model, patience_s)
        server.code, server.dying = -11, [model]
        assert watch.look() == Fault("The server ended by itself with exit code -11")
    assert server.calls == []


def test_a_dead_front_end_is_loaded_anew_while_the_server_serves_but_not_without_end() -> None:
    server = FakeServer()
    server.loading.clear()
    with watching(server) as watch:
        for _ in range(2):  # the second death during the reload changes nothing
            server.dying = ["audio_tokenizer"]
            assert watch.look() is None
        server.loading.set()
        assert server.loaded.acquire(timeout=WAIT_S)
        assert server.calls == ["unload audio_tokenizer", "load audio_tokenizer"]
        for _ in range(MAX_RELOADS - 2):
            server.dying = ["audio_tokenizer"]
            assert watch.look() is None
        server.dying = ["speaker_embedding"]
        fault = watch.look()
    assert fault is not None and fault.model == "" and fault.patience_s > OTHERS_PATIENCE_S


def test_a_front_end_that_does_not_load_is_tried_again_and_then_a_reason_to_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_watch, "LOAD_RETRY_S", 0.0)
    server = FakeServer()
    server.load_errors = [ServerError("The server could not load it.")] * LOAD_ATTEMPTS
    with watching(server) as watch:
        server.dying = ["speaker_embedding"]
        fault = wait_for_fault(watch)
    assert fault.reason == "The server could not load it" and fault.model == "" and fault.patience_s > OTHERS_PATIENCE_S
    assert server.calls == ["unload speaker_embedding", *["load speaker_embedding"] * LOAD_ATTEMPTS]


def test_a_server_that_hangs_cannot_tell_anybody() -> None:
    stopped: list[bool] = []
    hangs = SimpleNamespace(look=lambda: "The server has not answered for 11.0 s", stop=lambda: stopped.append(True))
    with watching(FakeServer(), hangs=hangs) as watch:
        assert watch.look() == Fault("The server has not answered for 11.0 s", is_mute=True)
    assert stopped


def test_probes_come_after_their_interval_and_two_failures_in_a_row_are_forgiven() -> None:
    now, outcomes = [0.0], [False, False, True, False, False, False]

    def probe(should_stop: Callable[[], bool]) -> None:
        if not outcomes.pop(0):
            raise RequestError("model token2wav did not answer")

    with watching(FakeServer(), probe, interval_s=10.0, clock=lambda: now[0]) as watch:
        assert watch.look() is None and len(outcomes) == 6
        while outcomes:
            now[0] += 10.0
            assert watch.look() is None  # notes how a probe has ended, or begins the next one
            wait_for(lambda: watch._prober._running is None or watch._prober._running.done(), "its end")
        assert wait_for_fault(watch) == Fault("The server does not work: model token2wav did not answer")
    assert not outcomes


def test_deaths_are_noticed_while_a_probe_waits_for_its_answer() -> None:
    server, waiting, finish = FakeServer(), threading.Event(), threading.Event()

    def probe(should_stop: Callable[[], bool]) -> None:
        waiting.set()
        assert finish.wait(WAIT_S)

    with watching(server, probe, interval_s=1e-9) as watch:
        assert watch.look() is None and waiting.wait(WAIT_S)
        server.dying = ["token2wav"]
        fault = watch.look()
        finish.set()
    assert fault is not None and fault.model == "token2wav"
