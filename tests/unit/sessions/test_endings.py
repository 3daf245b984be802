"""Sessions that end early or wait: cancel, a lost client, timeouts, back-pressure from the listener, shutdown."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable

import pytest

from bistream.errors import BusyError, CancelledError, EngineError, InvalidInputError, SessionTimeoutError, ShuttingDownError
from bistream.sessions.session_record import SessionRecord
from bistream.sessions.watcher import MAX_POLLS
from tests.formats import SAMPLE_RATE
from tests.unit.sessions.fakes import REFERENCE, WAIT_S, FakeSender, append_request, cancel_request, start_request
from tests.unit.sessions.house import CONFIG, House, assert_whole, house_with, tokens_of


def test_a_client_that_has_gone_is_noticed_and_everything_is_freed(house: House) -> None:
    sender = house.send(start_request("Hello world.", is_end=False))
    sender.wait_chunks(1)
    house.orchestrator.watch()
    assert house.orchestrator.open_sessions == 1
    sender.gone = True
    house.orchestrator.watch()
    assert isinstance(sender.wait(), CancelledError)
    house.wait_empty()


@house_with(max_sessions=2 * MAX_POLLS + 1)
def test_of_many_sessions_each_is_asked_for_in_turn(house: House) -> None:
    senders = [house.send(start_request("", session_id=f"s{number}", is_end=False)) for number in range(2 * MAX_POLLS + 1)]
    senders[-1].gone = True
    for _ in range(3):
        house.orchestrator.watch()
    assert [sender for sender in senders if sender.endings] == senders[-1:]


@pytest.mark.parametrize("hop", [0, 3])
def test_cancel_while_a_hop_is_computed(house: House, hop: int) -> None:
    gate, reached = house.models.token2wav.hold(hop)
    sender = house.send(start_request("Hello world. " * 7))
    assert reached.wait(WAIT_S)
    assert house.send(cancel_request()).endings == [None]
    assert isinstance(sender.wait(), CancelledError), "the client does not wait for the hop"
    gate.set()
    house.wait_empty()
    assert len(sender.chunks) == hop


def test_the_answer_to_a_cancel_says_what_was_heard(house: House) -> None:
    text = "Hello world. " * 7
    gate, reached = house.models.token2wav.hold(3)
    sender = house.send(start_request(text, is_end=False))
    assert reached.wait(WAIT_S)
    sent = len(sender.waveform) / SAMPLE_RATE
    positions = []
    for seconds in (0.0, 0.5 * sent, 0.5 * sent):
        house.clock.now += seconds
        heard = house.run().heard()
        assert heard.waveform.size == 0 and heard.text_consumed <= heard.text_position <= len(text)
        positions.append(heard.text_position)
    assert positions[0] == 0 < positions[1] < positions[2] == sender.chunks[-1].text_position
    answer = house.send(cancel_request())
    gate.set()
    assert answer.endings == [None] and answer.heard is not None and answer.heard.text_position == positions[2]
    house.wait_empty()


def test_an_analysis_that_nobody_waits_for_any_more_is_dropped(house: House) -> None:
    """Two recordings are analysed at a time, so the third waits."""
    house.models.voice.gate = threading.Event()
    senders = []
    for index in range(3):
        senders.append(house.send(start_request(session_id=str(index), reference_wav=REFERENCE * (index + 1) / 9)))
        house.wait_analyses(index + 1)
    for index in (2, 1):
        house.send(cancel_request(str(index)))
        assert isinstance(senders[index].wait(), CancelledError)
    house.wait_open(1)
    house.models.voice.gate.set()
    assert senders[0].wait() is None
    house.wait_empty()
    house.orchestrator.close()  # waits for the other analysis
    assert house.models.voice.calls == 2


@house_with(max_sessions=8, max_voice_analyses=3)
def test_too_many_recordings_are_refused_at_once_and_known_voices_are_not(house: House) -> None:
    assert house.send(start_request()).wait() is None
    house.models.voice.gate = threading.Event()
    waiting = [house.send(start_request(session_id=str(index), reference_wav=REFERENCE * (index + 2) / 9)) for index in range(3)]
    house.wait_analyses(3)
    shared = house.send(start_request(session_id="shared", reference_wav=REFERENCE * 2 / 9))
    refused = house.send(start_request(session_id="refused", reference_wav=REFERENCE / 2))
    assert isinstance(refused.wait(), BusyError)
    assert house.send(start_request()).wait() is None
    house.models.voice.gate.set()
    assert [sender.wait() for sender in (*waiting, shared)] == [None] * 4
    assert house.models.voice.calls == 4


@house_with(max_offline_tokens=30)
def test_an_utterance_that_is_too_long_is_refused_before_it_is_rendered(house: House) -> None:
    found = house.send(start_request("Hello world, once more.", is_offline=True, speed=1.5)).wait()
    assert isinstance(found, InvalidInputError) and "1.2 s" in str(found)
    assert house.models.token2wav.speeds == []


def test_a_cancel_right_before_the_start_is_sent_stops_it(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    voice_ready = SessionRecord.voice_ready

    def cancelled(record: SessionRecord, now: float) -> None:
        voice_ready(record, now)
        house.orchestrator.handle(cancel_request(), FakeSender())

    monkeypatch.setattr(SessionRecord, "voice_ready", cancelled)
    assert isinstance(house.send(start_request("", is_end=False)).wait(), CancelledError)
    house.wait_empty()
    assert not house.models.language_model.start_sent.is_set() and not caplog.records


def test_a_cancel_while_the_start_is_on_its_way_follows_it(house: House) -> None:
    model = house.models.language_model
    model.holds_start = threading.Event()
    sender = house.send(start_request("", is_end=False))
    assert model.start_sent.wait(WAIT_S)
    house.send(cancel_request())
    assert isinstance(sender.wait(), CancelledError)
    assert house.orchestrator.open_sessions == 1, "until the language model has answered both"
    model.holds_start.set()
    model.wait_counted("cancels")
    house.wait_empty()
    assert model.counts["cancels"] == 1


def test_places_cannot_be_hoarded_with_pieces_that_say_nothing(house: House) -> None:
    """As many sessions as there are places, each renewed every 10 s by nothing said."""
    nothing = ("", " ", "", ".", "?", "!", "")  # less than the fake speaks for
    senders = [house.send(start_request("", session_id=f"s{i}", is_end=False)) for i in range(CONFIG.max_sessions)]
    house.wait_receiving()
    refused = set()
    for piece in nothing:
        house.clock.now += 10.0
        for index in range(CONFIG.max_sessions):
            answer = house.send(append_request(piece, session_id=f"s{index}"))
            refused |= {type(error) for error in answer.endings if error is not None}
        house.orchestrator.watch()
    assert all(isinstance(sender.wait(), SessionTimeoutError) for sender in senders)
    assert refused <= {SessionTimeoutError}
    house.wait_empty()
    assert house.send(start_request(session_id="next")).wait() is None


def test_the_sound_of_blanks_keeps_no_place(house: House) -> None:
    """A model that has heard words speaks the blanks after them as well."""
    sender = house.send(start_request("Hello", is_end=False))
    for _ in range(7):
        house.wait_receiving()
        house.clock.now += 10.0
        house.send(append_request(" " * 10))  # 30 speech tokens
        house.orchestrator.watch()
    assert isinstance(sender.wait(), SessionTimeoutError)
    assert house.models.token2wav.hops[-1].token_ids, "the blanks were never spoken"
    house.wait_empty()


def test_a_session_waiting_for_text_renews_its_leases(house: House) -> None:
    sender = house.send(start_request("Hello world.", is_end=False))
    sender.wait_chunks(1)
    for count in range(1, 3):  # without any request of the client
        house.wait_receiving()
        house.clock.now += CONFIG.session_idle_timeout_s / 3 + 0.1
        house.orchestrator.watch()
        house.models.language_model.wait_counted("renewals", count)
        if count > 1:  # at first a hop with the tokens held back goes out instead
            assert house.models.token2wav.renewals.get(timeout=WAIT_S)
    assert sender.endings == []
    house.send(append_request("!", is_end=True))
    assert_whole(sender, "Hello world.!")


@house_with(max_text_chars=1000, max_unread_audio_s=5.0)
def test_generation_waits_while_the_listener_has_enough(house: House) -> None:
    text = "Hello world. " * 20
    began_at, sender = house.clock.now, house.send(start_request(text))
    for _ in range(100):
        if sender.endings:
            break
        house.wait_waiting(sender)
        unread_s = len(sender.waveform) / SAMPLE_RATE - (house.clock.now - began_at)
        assert unread_s <= 5.0 + 4.0, "at most one hop more than the bound"
        house.clock.now += 1.0
        house.orchestrator.watch()
    assert_whole(sender, text)
    assert house.clock.now - began_at >= tokens_of(text) / 25 - 10.0


def begin(house: House, end: Callable[..., None], *arguments: object) -> threading.Thread:
    """A drain or a failure: returns its thread; from now on new sessions are refused."""
    thread = threading.Thread(target=end, args=arguments)
    thread.start()
    house.wait_until(lambda: house.orchestrator._refusal is not None, "it refuses nobody")
    return thread


def test_running_sessions_still_accept_text_during_a_drain(house: House) -> None:
    sender = house.send(start_request("Hello ", is_end=False))
    drained = begin(house, house.orchestrator.drain, WAIT_S)
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


@pytest.mark.parametrize("model", ["llm_bistream", "token2wav"])
def test_sessions_that_need_a_failed_model_are_told_at_once(house: House, model: str) -> None:
    sender = house.send(start_request("Hello world.", is_end=False))
    sender.wait_chunks(1)
    failure = begin(house, house.orchestrator.fail, model, WAIT_S)
    assert isinstance(sender.wait(), EngineError) and len(sender.endings) == 1
    failure.join(WAIT_S)
    assert not failure.is_alive()
    assert isinstance(house.refused(start_request(session_id="new")), EngineError)


def test_a_session_whose_call_never_returns_is_told_all_the_same(house: House) -> None:
    """A call into a dead process is never answered."""
    gate, reached = house.models.token2wav.hold()
    sender = house.send(start_request("Hello world."))
    assert reached.wait(WAIT_S)
    house.orchestrator.fail("token2wav", WAIT_S)
    assert isinstance(sender.endings[0], EngineError) and house.orchestrator.open_sessions == 1
    gate.set()
    house.wait_empty()
    assert len(sender.endings) == 1


def test_a_session_with_all_its_tokens_outlives_the_language_model(house: House) -> None:
    gate, reached = house.models.token2wav.hold()
    sender = house.send(start_request("Hello world."))
    assert reached.wait(WAIT_S)
    session = house.run().session
    house.wait_until(lambda: session.finish_reason is not None, "tokens are missing")
    failure = begin(house, house.orchestrator.fail, "llm_bistream", WAIT_S)
    gate.set()
    failure.join(WAIT_S)
    assert not failure.is_alive()
    assert_whole(sender, "Hello world.")


@pytest.mark.parametrize("model", ["", "cosyvoice2"])
def test_sessions_that_do_not_need_the_failed_model_end_with_an_error_after_the_patience(house: House, model: str) -> None:
    sender = house.send(start_request("Hello world.", is_end=False))
    sender.wait_chunks(1)
    house.orchestrator.fail(model, 0.0)
    assert isinstance(sender.wait(), EngineError)


def test_a_failure_ends_a_drain(house: House) -> None:
    sender = house.send(start_request("Hello world.", is_end=False))
    sender.wait_chunks(1)
    drained = begin(house, house.orchestrator.drain, WAIT_S)
    house.orchestrator.fail("token2wav", WAIT_S)
    assert isinstance(sender.wait(), EngineError)
    drained.join(WAIT_S)
    assert not drained.is_alive()


@pytest.mark.parametrize("ending", ["well", "offline", "cancelled", "gone", "failed", "refused"])
def test_no_object_of_a_session_outlives_it(house: House, ending: str) -> None:
    """Not even in a reference cycle: the garbage collector counts objects, and a recording or an utterance takes megabytes."""
    token2wav = house.models.token2wav
    if ending == "failed":
        token2wav.fails_at[0] = EngineError("It broke.")
    request = start_request(
        b"\xff" if ending == "refused" else "Hello world.",
        is_end=ending not in ("cancelled", "gone"),
        is_offline=ending == "offline",
        reference_wav=REFERENCE.copy(),
    )
    recording_freed, sender_freed = threading.Event(), threading.Event()
    weakref.finalize(request.reference_wav, recording_freed.set)
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
