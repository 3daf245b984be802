"""Sessions that end early or wait: cancel, a lost client, timeouts, back-pressure from the listener, shutdown."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from bistream.config import RuntimeConfig
from bistream.errors import (
    CancelledError,
    EngineError,
    SessionTimeoutError,
    ShuttingDownError,
)
from bistream.rates import SAMPLE_RATE
from tests.unit.orchestration.fakes import (
    REFERENCE,
    WAIT_S,
    append_request,
    cancel_request,
    start_request,
)
from tests.unit.orchestration.house import CONFIG, House, assert_whole, tokens_of


def test_a_client_that_has_gone_is_noticed_and_everything_is_freed(house: House) -> None:
    sender = house.send(start_request("Hello world.", is_end=False))
    sender.wait_chunks(1)
    house.orchestrator.watch()
    assert house.orchestrator.open_sessions == 1
    sender.gone = True
    house.orchestrator.watch()
    assert isinstance(sender.wait(), CancelledError)
    house.wait_empty()


@pytest.mark.parametrize("hop", range(4))
def test_cancel_while_a_hop_is_computed(house: House, hop: int) -> None:
    gate = house.models.token2wav.gates[hop] = threading.Event()
    reached = house.models.token2wav.reached[hop] = threading.Event()
    sender = house.send(start_request("Hello world. " * 7))
    assert reached.wait(WAIT_S)
    assert house.send(cancel_request()).endings == [None]
    assert isinstance(sender.wait(), CancelledError), "the client does not wait for the hop"
    gate.set()
    house.wait_empty()
    assert len(sender.chunks) == hop


def test_cancel_while_the_voice_is_prepared(house: House) -> None:
    house.models.voice.gate = threading.Event()
    sender = house.send(start_request())
    assert house.models.voice.called.wait(WAIT_S)
    house.send(cancel_request())
    assert isinstance(sender.wait(), CancelledError)
    house.models.voice.gate.set()
    house.wait_empty()
    assert house.models.language_model.starts == []


def test_a_cancel_that_overtakes_the_start_is_repeated(house: House) -> None:
    """The cancel finds no session; the start arrives later and would stay forever."""
    model = house.models.language_model
    model.holds_start = threading.Event()
    model.answers_late = True
    sender = house.send(start_request("", is_end=False))
    assert model.start_sent.wait(WAIT_S)
    house.send(cancel_request())
    assert isinstance(sender.wait(), CancelledError)
    model.wait_counted("cancels")
    model.holds_start.set()
    assert model.start_arrived.wait(WAIT_S)
    assert house.models.held == 1
    house.clock.now += 1.0
    house.orchestrator.watch()
    house.wait_empty()


def test_idle_session_times_out_only_while_it_receives(house: House) -> None:
    sender = house.send(start_request("Hello", is_end=False))
    house.wait_receiving()
    house.clock.now += CONFIG.session_idle_timeout_s - 1.0
    house.orchestrator.watch()
    house.send(append_request())  # an empty piece keeps it alive
    house.clock.now += CONFIG.session_idle_timeout_s - 1.0
    house.orchestrator.watch()
    assert sender.endings == []
    house.clock.now += 1.0
    house.orchestrator.watch()
    assert isinstance(sender.wait(), SessionTimeoutError)
    house.wait_empty()


def test_a_session_that_speaks_or_finishes_is_not_idle(house: House) -> None:
    gate = house.models.token2wav.gates[0] = threading.Event()
    reached = house.models.token2wav.reached[0] = threading.Event()
    sender = house.send(start_request("Hello world."))
    assert reached.wait(WAIT_S)
    house.clock.now += 1000.0
    house.orchestrator.watch()
    gate.set()
    assert_whole(sender, "Hello world.")


def test_a_session_waiting_for_text_renews_its_leases(house: House) -> None:
    sender = house.send(start_request("Hello world.", is_end=False))
    sender.wait_chunks(1)
    for count in range(1, 4):
        house.wait_receiving()
        house.send(append_request())  # the client keeps the session alive
        house.clock.now += CONFIG.session_idle_timeout_s / 3 + 0.1
        house.orchestrator.watch()
        house.models.language_model.wait_counted("renewals", count)
        if count > 1:  # at first a hop with the tokens held back goes out instead
            assert house.models.token2wav.renewals.get(timeout=WAIT_S)
    assert sender.endings == []
    house.send(append_request("!", is_end=True))
    assert_whole(sender, "Hello world.!")


def test_generation_waits_while_the_listener_has_enough() -> None:
    house = House(RuntimeConfig(max_text_chars=1000, max_unread_audio_s=5.0, drain_timeout_s=0.0))
    text = "Hello world. " * 20
    sender = house.send(start_request(text))
    for _ in range(100):
        if sender.endings:
            break
        house.wait_waiting(sender)
        unread_s = len(sender.waveform) / SAMPLE_RATE - (house.clock.now - 100.0)
        assert unread_s <= 5.0 + 4.0, "at most one hop more than the bound"
        house.clock.now += 1.0
        house.orchestrator.watch()
    assert_whole(sender, text)
    assert house.clock.now - 100.0 >= tokens_of(text) / 25 - 10.0
    house.orchestrator.close()


def start_drain(house: House) -> threading.Thread:
    """Returns the draining thread; from now on new sessions are refused."""
    thread = threading.Thread(target=house.orchestrator.drain, args=(WAIT_S,))
    thread.start()
    with house.orchestrator._changed:
        assert house.orchestrator._changed.wait_for(lambda: house.orchestrator._draining, WAIT_S)
    return thread


def test_drain_lets_sessions_finish_and_admits_no_new_ones(house: House) -> None:
    gate = house.models.token2wav.gates[0] = threading.Event()
    sender = house.send(start_request("Hello world."))
    drained = start_drain(house)
    assert isinstance(house.refused(start_request(session_id="new")), ShuttingDownError)
    gate.set()
    drained.join(WAIT_S)
    assert not drained.is_alive()
    assert_whole(sender, "Hello world.")


def test_running_sessions_still_accept_text_during_a_drain(house: House) -> None:
    sender = house.send(start_request("Hello ", is_end=False))
    drained = start_drain(house)
    assert isinstance(house.refused(start_request(session_id="new")), ShuttingDownError)
    assert house.send(append_request("world")).endings == [None]
    assert drained.is_alive() and sender.endings == []
    assert house.send(append_request(".", is_end=True)).endings == [None]
    drained.join(WAIT_S)
    assert not drained.is_alive()
    assert_whole(sender, "Hello world.")


def test_close_ends_what_is_left_after_the_deadline(house: House) -> None:
    sender = house.send(start_request("Hello world.", is_end=False))
    sender.wait_chunks(1)
    house.orchestrator.close()
    assert isinstance(sender.wait(), ShuttingDownError)
    assert isinstance(house.refused(start_request()), ShuttingDownError)
    house.orchestrator.close()


@pytest.mark.parametrize("ending", ["well", "offline", "cancelled", "gone", "failed", "refused"])
def test_no_object_of_a_session_outlives_it(house: House, ending: str) -> None:
    """Not even in a reference cycle: the garbage collector counts objects, and a recording or an utterance takes megabytes."""
    token2wav = house.models.token2wav
    if ending == "failed":
        token2wav.fails_at[0] = EngineError("It broke.")
    request = start_request(
        b"\xff" if ending == "refused" else "Hello world.",
        is_end=ending not in ("cancelled", "gone"),
        offline=ending == "offline",
        reference_wav=REFERENCE.copy(),
    )
    recording_freed, sender_freed = threading.Event(), threading.Event()
    weakref.finalize(request.reference_wav, recording_freed.set)
    gc.collect()
    gc.disable()
    try:
        sender = house.send(request)
        weakref.finalize(sender, sender_freed.set)
        if ending in ("cancelled", "gone"):
            sender.wait_chunks(1)
        if ending == "cancelled":
            house.send(cancel_request())
        elif ending == "gone":
            sender.gone = True
            house.orchestrator.watch()
        sender.wait()
        house.wait_empty()
        token2wav.fails_at.clear()  # a raised error holds the frames of its traceback
        del sender, request
        assert sender_freed.wait(WAIT_S), "the audio"
        assert recording_freed.wait(WAIT_S), "the recording"
    finally:
        gc.enable()
