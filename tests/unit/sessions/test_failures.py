"""Models that fail: their session ends with one clear error, everything is freed, and the others go on."""

from __future__ import annotations

import logging
import threading

import pytest

from bistream.errors import BistreamError, BusyError, CancelledError, EngineError, SessionExistsError, UnknownSessionError
from bistream.sessions.speaking import ANSWER_TIMEOUT_S
from bistream.types import FinishReason
from tests.unit.sessions.fakes import WAIT_S, FakeModels, FakeSender, append_request, start_request
from tests.unit.sessions.house import House, assert_whole


@pytest.mark.parametrize("model", ["language model", "token2wav"])
def test_a_model_that_never_answers_ends_its_session(house: House, model: str) -> None:
    models = house.models
    if model == "token2wav":
        gate, asked = models.token2wav.hold()
    else:
        gate, asked = threading.Event(), models.language_model.start_sent
        models.language_model.holds_start = gate
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


def fail(models: FakeModels, step: str | int, error: Exception) -> None:
    """step: the analysis of the voice, the start of the language model, the number of its message or of a hop."""
    if step == "voice":
        models.voice.fails = error
    elif isinstance(step, str) and step.startswith("hop"):
        models.token2wav.fails_at[int(step[-1])] = error
    else:
        models.language_model.fails_at[step] = error


@pytest.mark.parametrize("step", ["voice", "start", 0, 1, 2, 3, "hop 0", "hop 1", "hop 2"])
@pytest.mark.parametrize("error", [BusyError("All are busy; wait.", "inner"), ValueError("secret at /root/model.py")])
def test_a_failing_model_ends_its_session_alone(house: House, step: str | int, error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """The traceback of an unexpected error goes to the log, and nowhere else."""
    fail(house.models, step, error)
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
    logged = [record for record in caplog.records if record.exc_info and "secret" in str(record.exc_info[1])]
    assert bool(logged) == isinstance(error, ValueError)
    house.models.voice.fails = None
    house.models.language_model.fails_at.clear()
    house.models.token2wav.fails_at.clear()
    house.models.token2wav.hops.clear()
    assert_whole(house.send(start_request("Hello again.")), "Hello again.")


@pytest.mark.parametrize("error", [UnknownSessionError("No id."), SessionExistsError("That id."), CancelledError("Cancelled.")])
@pytest.mark.parametrize("step", ["start", 0, "hop 1"])
def test_a_models_error_about_our_own_id_does_not_reach_the_client(house: House, step: str | int, error: BistreamError) -> None:
    fail(house.models, step, error)
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


def test_a_session_cut_by_the_length_limit_is_spoken_to_its_end_and_takes_no_more_text(house: House) -> None:
    house.models.language_model.ends_with = FinishReason.LENGTH
    gate, _ = house.models.token2wav.hold()
    sender = house.send(start_request("Hello ", is_end=False))
    session = house.run().session
    assert house.models.language_model.start_arrived.wait(WAIT_S)
    house.models.language_model.cuts = True
    house.send(append_request("world."))
    house.wait_until(lambda: session.finish_reason is not None, "it is not cut")
    error = house.refused(append_request("more"))
    assert isinstance(error, UnknownSessionError) and "length limit" in error.sentence
    gate.set()
    assert_whole(sender, "Hello world.")
