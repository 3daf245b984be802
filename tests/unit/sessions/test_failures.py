"""Models that fail: their session ends with one clear error, everything is freed, and the others go on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest

from bistream.errors import BistreamError, BusyError, CancelledError, EngineError, SessionExistsError, UnknownSessionError
from bistream.sessions.speaking import ANSWER_TIMEOUT_S
from bistream.types import FinishReason
from tests.unit.sessions.fakes import WAIT_S, FakeModels, FakeSender, append_request, start_request
from tests.unit.sessions.house import House, assert_whole


@pytest.mark.parametrize("model", ["language model", "token2wav"])
def test_a_model_that_never_answers_ends_its_session(house: House, model: str) -> None:
    models, gate = house.models, threading.Event()
    if model == "token2wav":
        models.token2wav.gates[0], asked = gate, threading.Event()
        models.token2wav.reached[0] = asked
    else:
        models.language_model.holds_start, asked = gate, models.language_model.start_sent
    sender = house.send(start_request("Hello world."))
    assert asked.wait(WAIT_S)
    house.clock.now += ANSWER_TIMEOUT_S - 1.0
    house.orchestrator.watch()
    assert sender.endings == []
    house.clock.now += 1.0
    house.orchestrator.watch()
    assert isinstance(sender.wait(), EngineError) and len(sender.endings) == 1
    gate.set()
    house.wait_empty()


def test_a_session_that_waits_for_its_client_is_owed_nothing(house: House) -> None:
    sender = house.send(start_request("Hello ", is_end=False))
    house.wait_receiving()
    assert house.run()._owed_since(house.clock.now + 1000.0) == house.clock.now + 1000.0
    house.send(append_request("world.", is_end=True))
    assert_whole(sender, "Hello world.")


def fail_voice(models: FakeModels, error: Exception) -> None:
    models.voice.fails = error


def fail_start(models: FakeModels, error: Exception) -> None:
    models.language_model.fails_at["start"] = error


def fail_message(number: int) -> Callable[[FakeModels, Exception], None]:
    def fail(models: FakeModels, error: Exception) -> None:
        models.language_model.fails_at[number] = error

    return fail


def fail_hop(number: int) -> Callable[[FakeModels, Exception], None]:
    def fail(models: FakeModels, error: Exception) -> None:
        models.token2wav.fails_at[number] = error

    return fail


STEPS = [fail_voice, fail_start, *map(fail_message, range(4)), *map(fail_hop, range(3))]


@pytest.mark.parametrize("fail", STEPS)
@pytest.mark.parametrize("error", [BusyError("All are busy; wait.", "inner"), ValueError("secret at /root/model.py")])
def test_a_failing_model_ends_its_session_alone(
    house: House, fail: Callable[[FakeModels, Exception], None], error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "bistream")
    fail(house.models, error)
    sender = house.send(start_request("Hello world, how are you?"))
    ending = sender.wait()
    assert ending is not None
    assert (ending.session_id, len(sender.endings)) == ("s", 1)
    if isinstance(error, BusyError):
        assert (type(ending), ending.sentence) == (BusyError, error.sentence)
    else:
        assert isinstance(ending, EngineError)
        assert "secret" not in ending.sentence
        assert "/" not in ending.sentence
    house.wait_empty()
    house.models.voice.fails = None
    house.models.language_model.fails_at.clear()
    house.models.token2wav.fails_at.clear()
    house.models.token2wav.hops.clear()
    assert_whole(house.send(start_request("Hello again.")), "Hello again.")


@pytest.mark.parametrize("error", [UnknownSessionError("No id."), SessionExistsError("That id."), CancelledError("Cancelled.")])
@pytest.mark.parametrize("fail", [fail_start, fail_message(0), fail_hop(1)])
def test_a_models_error_about_our_own_id_does_not_reach_the_client(
    house: House, fail: Callable[[FakeModels, Exception], None], error: BistreamError
) -> None:
    fail(house.models, error)
    ending = house.send(start_request("Hello world, how are you?")).wait()
    assert isinstance(ending, EngineError)
    assert error.sentence not in ending.sentence
    house.wait_empty()


class FaultySender(FakeSender):
    def is_cancelled(self) -> bool:
        raise OSError("the server is broken")


def test_a_faulty_sender_does_not_keep_the_others_from_being_watched(house: House, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "bistream")
    house.orchestrator.handle(start_request("Hello", "faulty", is_end=False), FaultySender())
    sender = house.send(start_request("Hello", is_end=False))
    sender.gone = True
    house.orchestrator.watch()
    assert isinstance(sender.wait(), CancelledError)


def test_the_traceback_of_an_unexpected_error_goes_to_the_log(house: House, caplog: pytest.LogCaptureFixture) -> None:
    fail_start(house.models, ValueError("secret"))
    house.send(start_request()).wait()
    house.wait_empty()
    assert any(record.exc_info and "secret" in str(record.exc_info[1]) for record in caplog.records)


def test_an_append_that_fails_ends_the_session(house: House) -> None:
    sender = house.send(start_request("Hello", is_end=False))
    assert house.models.language_model.start_arrived.wait(WAIT_S)
    house.models.language_model.fails_at["append"] = EngineError("The engine broke; try again.")
    assert house.send(append_request("more")).endings == [None], "it was accepted; the session reports the failure"
    assert isinstance(sender.wait(), EngineError)
    house.wait_empty()


@pytest.mark.parametrize("reason", [FinishReason.CANCELLED, FinishReason.ERROR])
def test_a_language_model_that_gives_up_is_an_error(house: House, reason: FinishReason) -> None:
    house.models.language_model.ends_with = reason
    sender = house.send(start_request())
    assert isinstance(sender.wait(), EngineError)
    house.wait_empty()


def test_a_session_cut_by_the_length_limit_is_spoken_to_its_end(house: House) -> None:
    house.models.language_model.ends_with = FinishReason.LENGTH
    assert_whole(house.send(start_request("Hello world.")), "Hello world.")
