"""A wrong call of the response sender kills the whole server. No interleaving of calls may cause one."""

from __future__ import annotations

import asyncio
import random
import threading
import weakref
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.contract.fields import COSYVOICE2, COSYVOICE2_BISTREAM
from bistream.errors import InvalidInputError
from bistream.transport.outbox import Outbox
from bistream.transport.overlap import OverlappingSender
from bistream.transport.sender import (
    BistreamAudioSender,
    CollectingSender,
    ResponseSender,
    WaveformSender,
)
from bistream.types import AudioChunk
from tests.unit.triton.fakes import FakePbUtils, FakeRequest, FakeResponse, FakeSender, held

VALUE = {"waveform": np.zeros(1, np.float32)}
ERROR = InvalidInputError("Send something else.", "s1")
CALLS: dict[str, Callable[[ResponseSender], object]] = {
    "send": lambda sender: sender.send(VALUE),
    "send_last": lambda sender: sender.send(VALUE, is_last=True),
    "finish": lambda sender: sender.finish(),
    "fail": lambda sender: sender.finish(ERROR),
    "is_cancelled": lambda sender: sender.is_cancelled(),
}


@settings(max_examples=20, deadline=None)
@given(calls=st.lists(st.sampled_from(sorted(CALLS)), max_size=12))
def test_any_order_of_calls_is_safe_and_finishes_once(calls: list[str]) -> None:
    fake = FakeSender()
    sender = ResponseSender(FakePbUtils(), fake, COSYVOICE2_BISTREAM)
    for call in calls:
        CALLS[call](sender)
    sender.finish()
    assert fake.violations == [] and fake.finals == 1 and fake.sent[-1][1]
    assert len(fake.errors) <= 1
    ends = [position for position, call in enumerate(calls) if call in ("finish", "fail", "send_last")]
    assert len(fake.data) - calls[: ends[0] if ends else len(calls)].count("send") in (0, 1)  # 1: in the last response


@pytest.mark.parametrize("seed", range(2))
def test_many_threads_on_one_sender_make_no_illegal_call(seed: int) -> None:
    fake = FakeSender()
    sender = ResponseSender(FakePbUtils(), fake, COSYVOICE2_BISTREAM)
    failures: list[BaseException] = []
    barrier = threading.Barrier(8)

    def hammer(number: int) -> None:
        choose = random.Random(seed * 100 + number)
        barrier.wait()
        try:
            for _ in range(200):
                CALLS[choose.choice(["send", "is_cancelled", "is_cancelled", "send"])](sender)
            CALLS[choose.choice(["finish", "fail"])](sender)
            for _ in range(50):
                CALLS[choose.choice(sorted(CALLS))](sender)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=hammer, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [] and fake.violations == []
    assert fake.finals == 1 and fake.sent[-1][1]


@pytest.mark.parametrize("method", ["send", "finish", "fail"])
def test_a_stream_that_is_gone_raises_nothing(method: str) -> None:
    fake = FakeSender()
    fake.raises = RuntimeError("Unable to send response. Response sender has been closed.")
    sender = ResponseSender(FakePbUtils(), fake, COSYVOICE2_BISTREAM)
    CALLS[method](sender)
    sender.finish()
    assert fake.sent == []


def test_outputs_that_cannot_be_made_fail_the_request() -> None:
    class Broken(FakePbUtils):
        def Tensor(self, name: str, array: object) -> None:  # type: ignore[override]
            raise ValueError("no such dtype")

    fake = FakeSender()
    ResponseSender(Broken(), fake, COSYVOICE2_BISTREAM).send(VALUE)
    assert fake.errors == ["ENGINE_ERROR: The server failed unexpectedly; its log has the reason. Try again."] and fake.finals == 1


def test_audio_has_the_tensors_of_each_front_model() -> None:
    chunk = AudioChunk(np.arange(3, dtype=np.float32), sequence_number=4, text_consumed=5, text_position=6)
    bistream, upstream = FakeSender(), FakeSender()
    with Outbox("test") as outbox:
        asyncio.run(BistreamAudioSender(ResponseSender(FakePbUtils(), bistream, COSYVOICE2_BISTREAM), outbox).send(chunk))
        asyncio.run(WaveformSender(ResponseSender(FakePbUtils(), upstream, COSYVOICE2), outbox).send(chunk))
    assert {name: (array.shape, str(array.dtype)) for name, array in bistream.data[0].items()} == {
        "waveform": ((1, 3), "float32"),
        "sequence_number": ((1, 1), "int32"),
        "text_consumed": ((1, 1), "int32"),
        "text_position": ((1, 1), "int32"),
    }
    assert list(upstream.data[0]) == ["waveform"] and upstream.data[0]["waveform"].shape == (3,)


@pytest.mark.parametrize("error", [None, ERROR])
def test_what_waits_for_a_cross_fade_is_sent_before_the_end_and_not_with_an_error(error: InvalidInputError | None) -> None:
    fake = FakeSender()
    with Outbox("test") as outbox:
        sender = OverlappingSender(ResponseSender(FakePbUtils(), fake, COSYVOICE2), outbox, overlap=2)
        for number, samples in enumerate(([], [1, 2, 3], [4, 5], [6])):
            asyncio.run(sender.send(AudioChunk(np.array(samples, np.float32), number, 0)))
        sender.finish(error)
    sent = [[1, 2, 3]] if error else [[1, 2, 3], [2, 3, 4, 5, 6]]
    assert [arrays["waveform"].tolist() for arrays in fake.data] == sent
    assert len(fake.errors) == (error is not None) and fake.finals == 1 and fake.sent[-1] == (None, True)


def test_unrequested_outputs_are_freed_in_python() -> None:
    """The stub drops them from the response without the GIL; the sender's own references must outlive that."""

    class DroppingSender(FakeSender):
        def send(self, response: FakeResponse | None = None, flags: int = 0) -> None:
            if response is not None:
                dropped = [weakref.ref(tensor) for tensor in response.output_tensors()]
                response.output_tensors().clear()
                assert dropped and all(tensor() is not None for tensor in dropped)
            super().send(response, flags)

    fake = DroppingSender()
    sender = ResponseSender(FakePbUtils(), fake, COSYVOICE2_BISTREAM)
    sender.send(VALUE)
    sender.send(VALUE, is_last=True)
    assert fake.finals == 1 and len(fake.sent) == 2


def test_a_first_chunk_is_sent_before_chunks_of_those_who_hear_something() -> None:
    order: list[int] = []

    class NumberedSender(FakeSender):
        def send(self, response: FakeResponse | None = None, flags: int = 0) -> None:
            super().send(response, flags)
            order.append(int(self.data[-1]["sequence_number"][0, 0]))

    async def speak(outbox: Outbox) -> None:
        with held(outbox):
            sending = [asyncio.ensure_future(sent(number, outbox)) for number in (3, 1, 0, 2)]
            await asyncio.sleep(0)
        await asyncio.gather(*sending)

    async def sent(number: int, outbox: Outbox) -> None:
        chunk = AudioChunk(np.zeros(3, np.float32), sequence_number=number, text_consumed=0, text_position=0)
        await BistreamAudioSender(ResponseSender(FakePbUtils(), NumberedSender(), COSYVOICE2_BISTREAM), outbox).send(chunk)

    with Outbox("test") as outbox:
        asyncio.run(speak(outbox))
    assert order == [0, 3, 1, 2]


def test_collecting_waits_for_the_whole_waveform_and_then_releases_the_request() -> None:
    request = FakeRequest()
    sender = CollectingSender(request)
    request.cancelled = True
    assert sender.is_cancelled()
    request.cancelled = False
    assert sender.is_cancelled()  # not asked again

    def speak() -> None:
        for number in range(3):
            asyncio.run(sender.send(AudioChunk(np.full(2, number, np.float32), number, 0)))
        sender.finish(None)

    thread = threading.Thread(target=speak)
    thread.start()
    assert sender.wait().tolist() == [0, 0, 1, 1, 2, 2]
    thread.join()
    request.answered = True
    assert not sender.is_cancelled()  # asking Triton now would crash the server


def test_collecting_raises_what_ended_the_session() -> None:
    sender = CollectingSender(FakeRequest())
    sender.finish(ERROR)
    with pytest.raises(InvalidInputError):
        sender.wait()
