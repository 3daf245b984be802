"""Requests of ``cosyvoice2`` become sessions of ``cosyvoice2_bistream``: audio in order, its error, and the end of a client that goes.

Over a real channel; the sessions are answered by the test.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bistream.contract.codec import Inputs, Values, text_array
from bistream.contract.fields import CALLED_BISTREAM
from bistream.errors import BistreamError, BusyError
from bistream.processes.control_files import CONTROL_VARIABLE
from bistream.transport.sender import Answerer
from bistream.transport.sibling_ports import open_channel
from bistream.triton.handover import HandOver
from bistream.types import AudioChunk
from tests.unit.transport.siblings import WAIT_S, Siblings


class Client:
    """``ports.AudioSender``."""

    def __init__(self) -> None:
        self.chunks: list[AudioChunk] = []
        self.first = threading.Event()
        self.ends: queue.SimpleQueue[BistreamError | None] = queue.SimpleQueue()
        self.has_gone = False

    async def send(self, chunk: AudioChunk) -> None:
        self.chunks.append(chunk)
        self.first.set()

    def report(self, heard: AudioChunk) -> None:
        raise AssertionError("nothing is cancelled by request")

    def finish(self, error: BistreamError | None) -> None:
        self.ends.put(error)

    def is_cancelled(self) -> bool:
        return self.has_gone

    def end(self) -> BistreamError | None:
        return self.ends.get(timeout=WAIT_S)

    @property
    def heard(self) -> list[float]:
        return [float(sample) for chunk in self.chunks for sample in chunk.waveform]


class Sessions(Siblings):
    """Those of ``cosyvoice2_bistream``: the number of chunks in its text is spoken; of other words, they wait for the test."""

    def __init__(self) -> None:
        super().__init__(lambda model, values: {})
        self.waiting: queue.SimpleQueue[Answerer] = queue.SimpleQueue()

    def handle(self, model: str, inputs: Inputs, sender: Answerer) -> None:
        text = inputs.value("target_text").decode()
        if text == "full":
            raise BusyError("The server is at capacity; try again in 2.0 s.", None, 2.0)
        if not text.isdigit():
            self.waiting.put(sender)
            return
        for number in range(int(text)):
            sender.send(audio(number))
        sender.finish()


def audio(number: int) -> Values:
    return {"waveform": np.full(2, number, np.float32), "sequence_number": number}


def said(text: str) -> Values:
    return {"target_text": text_array(text)}


@pytest.fixture
def sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sessions]:
    monkeypatch.setenv(CONTROL_VARIABLE, str(tmp_path))
    sessions = Sessions()
    yield sessions
    sessions.close()


def open_hand_over(patience_s: float = WAIT_S) -> HandOver:
    return HandOver(open_channel(CALLED_BISTREAM), patience_s)


@pytest.fixture
def hand_over(sessions: Sessions) -> Iterator[HandOver]:
    hand_over = open_hand_over()
    yield hand_over
    hand_over.close()


def test_every_client_gets_the_audio_of_its_own_session_in_order(hand_over: HandOver) -> None:
    clients = {length: Client() for length in (1, 300, 0, 7)}
    for length, client in clients.items():
        hand_over.handle(said(str(length)), client)
    for length, client in clients.items():
        assert client.end() is None
        assert client.heard == [number for number in range(length) for _ in range(2)]
        assert [chunk.sequence_number for chunk in client.chunks] == list(range(length))


def test_the_error_of_a_session_is_told_as_it_is(hand_over: HandOver) -> None:
    client = Client()
    hand_over.handle(said("full"), client)
    error = client.end()
    assert isinstance(error, BusyError) and (error.retry_after_s, error.session_id) == (2.0, None)


def test_a_client_that_goes_ends_its_session_alone(sessions: Sessions, hand_over: HandOver) -> None:
    clients = [Client(), Client()]
    for client in clients:
        hand_over.handle(said("slowly"), client)
    speaking = [sessions.waiting.get(timeout=WAIT_S) for _ in clients]
    for sender in speaking:
        sender.send(audio(0))
    for client in clients:
        assert client.first.wait(WAIT_S)
    clients[0].has_gone = True
    assert getattr(clients[0].end(), "code", None) == "CANCELLED"
    while not speaking[0].is_cancelled():
        pass
    speaking[0].finish(BusyError("Late."))
    assert not speaking[1].is_cancelled()
    speaking[1].finish()
    assert clients[1].end() is None and clients[0].ends.empty()


def test_the_death_of_the_other_process_is_told_to_each_client(sessions: Sessions, hand_over: HandOver) -> None:
    client, late = Client(), Client()
    hand_over.handle(said("slowly"), client)
    sessions.waiting.get(timeout=WAIT_S)
    sessions.close()
    assert getattr(client.end(), "code", None) == "ENGINE_ERROR"
    hand_over.handle(said("1"), late)
    assert getattr(late.end(), "code", None) == "ENGINE_ERROR"


def test_an_end_waits_for_what_is_under_way_and_takes_nothing_new(sessions: Sessions) -> None:
    hand_over, client, late = open_hand_over(), Client(), Client()
    hand_over.handle(said("slowly"), client)
    speaking = sessions.waiting.get(timeout=WAIT_S)
    closing = threading.Thread(target=hand_over.close)
    closing.start()
    speaking.send(audio(0))
    speaking.finish()
    closing.join(WAIT_S)
    assert client.end() is None and client.heard == [0.0, 0.0]
    hand_over.handle(said("1"), late)
    assert getattr(late.end(), "code", None) == "SHUTTING_DOWN"
    hand_over.close()


def test_what_does_not_end_in_time_is_told_and_given_up(sessions: Sessions) -> None:
    hand_over, client = open_hand_over(patience_s=0.0), Client()
    hand_over.handle(said("slowly"), client)
    speaking = sessions.waiting.get(timeout=WAIT_S)
    closing = threading.Thread(target=hand_over.close)
    closing.start()
    assert getattr(client.end(), "code", None) == "SHUTTING_DOWN"
    speaking.finish()
    closing.join(WAIT_S)
    assert not closing.is_alive() and client.ends.empty()
