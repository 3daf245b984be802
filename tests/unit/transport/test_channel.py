"""Both ends of a channel: order, few requests for many calls, errors, and no request while nothing is owed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from bistream.contract.codec import Arrays, Inputs, scalar_array, text_array
from bistream.contract.fields import TOKEN2WAV
from bistream.contract.refusals import format_error
from bistream.errors import BistreamError, BusyError, EngineError, InvalidInputError, UnknownSessionError
from bistream.transport import channel_end
from bistream.transport.bls_client import BlsClient
from bistream.transport.channel import MAX_CALL_BYTES, Channel
from bistream.transport.channel_end import MAX_CHANNELS, BlsEnds
from bistream.transport.envelope import Message, pack, unpack
from bistream.transport.iterator_keeper import IteratorKeeper
from bistream.transport.sender import Answerer, SiblingResponseSender
from bistream.triton.inputs import TritonInputs
from tests.unit.transport.siblings import WAIT_S, AwaitedSender, Siblings
from tests.unit.triton.fakes import FakePbUtils, FakeRequest, FakeResponse, error_response, response


def echo(model: str, arrays: Arrays) -> list[FakeResponse]:
    return [response(**arrays)]


def call(number: int) -> Arrays:
    return {"seed": scalar_array(number, np.int64)}


def open_channel(siblings: Siblings) -> Channel:
    return Channel(BlsClient(siblings.backend, IteratorKeeper()), TOKEN2WAV, "c")


@pytest.fixture
def siblings() -> Siblings:
    return Siblings(echo)


@pytest.fixture
def channel(siblings: Siblings) -> Iterator[Channel]:
    channel = open_channel(siblings)
    yield channel
    channel.close()
    assert not [thread for thread in channel._threads if thread.is_alive()]


def test_every_call_gets_its_own_answer_and_calls_arrive_in_order(channel: Channel, siblings: Siblings) -> None:
    async def ask_all() -> list[int]:
        answers = await asyncio.gather(*(channel.ask(call(number)) for number in range(500)))
        return [int(answer["seed"].item()) for answer in answers]

    assert asyncio.run(ask_all()) == list(range(500))
    assert [int(arrays["seed"].item()) for _, arrays in siblings.calls] == list(range(500))
    assert len(siblings.requests) < 500, "many calls leave together"


def test_calls_that_come_while_a_request_is_under_way_leave_in_the_next_one(siblings: Siblings) -> None:
    entered, gate = threading.Event(), threading.Event()

    def slow(model: str, arrays: Arrays) -> list[FakeResponse]:
        entered.set()
        assert gate.wait(WAIT_S)
        return echo(model, arrays)

    slow_siblings = Siblings(slow)
    channel = open_channel(slow_siblings)

    async def ask_all() -> None:
        first = asyncio.ensure_future(channel.ask(call(0)))
        while not entered.is_set():
            await asyncio.sleep(0.002)
        others = [asyncio.ensure_future(channel.ask(call(number))) for number in range(1, 100)]
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(first, *others)

    asyncio.run(ask_all())
    channel.close()
    assert slow_siblings.requests.count("calls") == 2


def test_a_request_is_not_larger_than_it_must_be(channel: Channel, siblings: Siblings) -> None:
    large = {"prompt_speech_feat": np.zeros((MAX_CALL_BYTES // 8, 1), np.float32)}

    async def ask_all() -> None:
        await asyncio.gather(*(channel.ask(large) for _ in range(8)))

    asyncio.run(ask_all())
    assert siblings.requests.count("calls") >= 4


def test_an_error_is_that_of_its_call_alone() -> None:
    def answer(model: str, arrays: Arrays) -> list[FakeResponse]:
        return [error_response(format_error(BusyError("Full.", "s")))] if arrays["seed"].item() % 2 else echo(model, arrays)

    channel = open_channel(Siblings(answer))

    async def ask_all() -> list[Any]:
        return await asyncio.gather(*(channel.ask(call(number)) for number in range(4)), return_exceptions=True)

    found = asyncio.run(ask_all())
    channel.close()
    assert [isinstance(one, BusyError) for one in found] == [False, True, False, True]
    assert (found[1].sentence, found[1].session_id) == ("Full.", "s")


@pytest.mark.parametrize("failing", ["calls", "collect"])
def test_a_model_that_cannot_be_called_fails_each_call_and_a_later_call_is_tried_again(failing: str) -> None:
    siblings = Siblings(echo)
    working, is_dead = siblings._exec, threading.Event()
    is_dead.set()

    def answer(model: str, arrays: Arrays) -> list[FakeResponse]:
        if is_dead.is_set() and ("calls" in arrays) == (failing == "calls"):
            return [error_response("Stub process 'token2wav_0_0' is not healthy.")]
        return working(model, arrays)

    siblings.backend = FakePbUtils(answer)
    channel = open_channel(siblings)

    async def ask_all() -> list[Any]:
        return await asyncio.gather(*(channel.ask(call(number)) for number in range(4)), return_exceptions=True)

    found = asyncio.run(ask_all())
    assert {type(one) for one in found} == {EngineError} and len({id(one) for one in found}) == 4
    assert "token2wav" not in found[0].sentence
    is_dead.clear()
    if failing == "calls":
        assert len(asyncio.run(ask_all())) == 4
    channel.close()


def test_an_idle_channel_holds_no_request(channel: Channel, siblings: Siblings) -> None:
    """Otherwise the server could not end."""
    for number in range(3):
        asyncio.run(channel.ask(call(number)))
    assert siblings.requests.count("calls") == 3 and siblings.requests.count("collect") <= 3
    channel.close()
    assert not [thread for thread in channel._threads if thread.is_alive()]


# The model's end


class End:
    """``BlsEnds`` whose calls are answered by the test."""

    def __init__(self) -> None:
        self.outbox = ThreadPoolExecutor(1)
        self.open: list[Answerer] = []
        self.ends = BlsEnds(TOKEN2WAV, self._handle, self.outbox)

    def _handle(self, inputs: Inputs, sender: Answerer) -> None:
        if inputs.value("seed") == 13:
            raise UnknownSessionError("Gone.", "s")
        self.open.append(sender)

    def send(self, channel_id: str = "c", **arrays: Any) -> AwaitedSender:
        sender = AwaitedSender()
        values = {"channel_id": text_array(channel_id), **arrays}
        inputs = TritonInputs(FakeRequest(**values), TOKEN2WAV)
        self.ends.take(channel_id, inputs, SiblingResponseSender(FakePbUtils(), sender))
        return sender

    def post(self, *seeds: int, channel_id: str = "c") -> None:
        sender = self.send(channel_id, calls=pack(Message(seed, call(seed)) for seed in seeds))
        assert sender.finals == 1 and not sender.data and not sender.errors

    def settle(self) -> None:
        self.outbox.submit(lambda: None).result(WAIT_S)


def answers(sender: AwaitedSender) -> list[Message]:
    assert sender.ended.wait(WAIT_S)
    (arrays,) = sender.data
    return unpack(arrays["answers"])


@pytest.fixture
def end() -> Iterator[End]:
    end = End()
    yield end
    end.outbox.shutdown()


def test_a_collector_waits_for_an_answer_and_later_ones_wait_for_a_collector(end: End) -> None:
    end.post(1, 2, 3)
    collector = end.send()
    end.settle()
    assert not collector.sent
    end.open[1].send_last({"waveform": np.ones(2, np.float32)})
    (first,) = answers(collector)
    assert first.number == 2 and first.arrays["waveform"].tolist() == [1, 1]
    end.open[0].finish()
    end.open[2].fail(BusyError("Full."))
    end.settle()
    assert [(message.number, message.error) for message in answers(end.send())] == [(1, None), (3, "BUSY: Full.")]


def test_a_call_is_answered_once_whatever_is_called(end: End) -> None:
    end.post(1)
    for act in ("finish", "finish"):
        getattr(end.open[0], act)()
    end.open[0].fail(BusyError("Late."))
    end.open[0].send_last({})
    assert len(answers(end.send())) == 1


def test_a_call_that_raises_is_answered_with_its_error_and_the_others_go_on(end: End) -> None:
    end.post(1, 13, 2)
    (message,) = answers(end.send())
    assert (message.number, message.error) == (13, "UNKNOWN_SESSION: Gone. [session s]")
    assert len(end.open) == 2


def test_an_answer_that_cannot_be_packed_fails_its_call_alone(end: End) -> None:
    end.post(1, 2)
    end.open[0].send_last({"waveform": np.ones(2, np.complex64)})
    end.open[1].send_last({"waveform": np.ones(2, np.float32)})
    failed, fine = answers(end.send())
    assert failed.error is not None and failed.error.startswith("ENGINE_ERROR: ") and fine.arrays["waveform"].tolist() == [1, 1]


def test_answers_are_collected_in_bounded_portions(end: End, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_end, "MAX_ANSWER_BYTES", 100)
    end.post(*range(5))
    for sender in end.open:
        sender.send_last({"waveform": np.zeros(20, np.float32)})
    assert [[message.number for message in answers(end.send())] for _ in range(5)] == [[0], [1], [2], [3], [4]]


@pytest.mark.parametrize("damage", [np.zeros(3, np.uint8), np.full(64, 255, np.uint8)])
def test_a_damaged_envelope_is_refused(end: End, damage: Any) -> None:
    with pytest.raises(InvalidInputError):
        end.send(calls=damage)


def test_two_collectors_of_one_channel_are_one_too_many(end: End) -> None:
    end.post(1)
    end.send()
    with pytest.raises(InvalidInputError):
        end.send()


def test_channels_are_bounded_and_idle_ones_make_room(end: End) -> None:
    for number in range(3 * MAX_CHANNELS):
        end.post(channel_id=f"idle{number}")
    for number in range(MAX_CHANNELS):
        end.post(1, channel_id=f"busy{number}")
    with pytest.raises(BistreamError, match="channels"):
        end.post(1, channel_id="one more")
    end.open[0].finish()
    answers(end.send("busy0"))
    end.post(1, channel_id="one more")
