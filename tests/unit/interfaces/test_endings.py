"""Every way in which an utterance can end, over sockets: counted once, and written down once, under the same name. Clients that leave:
test_gone_clients.py."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from bistream.errors import BusyError, EngineError, InvalidInputError, SessionTimeoutError
from gateway.keys import Keys
from interfaces.audio.formats import OutputFormat
from interfaces.core import service
from interfaces.core.record import Ending, SpeechRecord, ending_of
from interfaces.core.service import Counts
from interfaces.protocols.deepgram import Deepgram, DeepgramOptions
from interfaces.settings import InterfaceLimits
from tests.unit.client.fake_server import FakeServer, Received, Stream
from tests.unit.interfaces.rig import ReadyServer, Running, running
from tests.unit.interfaces.test_conversation import MemorySocket, ScriptedService, converse, speak
from tests.unit.interfaces.test_gone_clients import wait_in_loop
from tests.unit.interfaces.vendors import ALL, CANCELS, MULTI, SINGLE, begin, finish

WAIT_S = 120.0


def behave(request: Received, stream: Stream) -> None:
    """Does what the text says: error codes before or ``after`` 100 ms of audio, ``speak`` and end, or ``hold`` and never end."""
    if not request.flag("is_start"):
        return
    words = request.inputs["target_text"].decode().split()
    if "before" not in words:
        stream.audio(request.id, np.zeros(2400), 0, 1)
    if words[-1].isupper():
        stream.error(request.id, f"{words[-1]}: It was so; try again in 1.0 s. [session x]")
    elif "hold" not in words:
        stream.final(request.id)


@pytest.fixture(scope="module")
def server() -> Iterator[FakeServer]:
    made = ReadyServer(behave)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def shared(server: FakeServer) -> Iterator[Running]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "LINES_WITHOUT_AUDIO", 1000)  # all tests are one client
        with running(server.address) as made:
            yield made


@pytest.fixture
def front(shared: Running) -> Running:
    """As if nothing had been counted yet."""
    shared.service.counts = Counts()
    return shared


@pytest.fixture
def written(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "interfaces.utterances")
    return caplog


def check(front: Running, written: pytest.LogCaptureFixture, ending: Ending, reason: str | None = None) -> None:
    """One utterance has ended so, and nothing else is counted."""

    def lines() -> list[Any]:
        return [json.loads(one.getMessage()) for one in written.records if one.name == "interfaces.utterances"]

    wait_in_loop(front, lambda: bool(lines()) and front.service.open_speeches == 0)
    (line,) = lines()
    assert +front.service.counts.endings == {ending: 1}
    assert line["ending"] == ending and (reason is None or line["reason"] == reason)
    with urllib.request.urlopen(f"{front.http}/metrics", timeout=WAIT_S) as answer:
        page = dict(re.findall(r"^bistream_interfaces_(\S+) (\S+)$", answer.read().decode(), re.MULTILINE))
    assert {name: value for name, value in page.items() if name.startswith("endings_total")} == {
        f'endings_total{{ending="{one}"}}': str(float(one is ending)) for one in Ending
    }
    is_refused, is_left = ending is Ending.REFUSED, ending in (Ending.CANCELLED, Ending.LEFT)
    is_failed = not (is_refused or is_left or ending is Ending.DONE)
    assert (page["refused_total"], page["cancelled_total"], page["failed_total"]) == tuple(
        str(float(flag)) for flag in (is_refused, is_left, is_failed)
    )


def ask(front: Running, text: str, voice: str = "anna", stream_format: str = "audio") -> None:
    body = {"model": "tts-1", "voice": voice, "input": text, "response_format": "pcm", "stream_format": stream_format}
    with (
        contextlib.suppress(urllib.error.HTTPError, ConnectionError, OSError, EOFError, Exception),
        urllib.request.urlopen(f"{front.http}/v1/audio/speech", json.dumps(body).encode(), timeout=WAIT_S) as answer,
    ):
        answer.read()


@pytest.mark.parametrize(
    ("text", "voice", "ending", "reason", "stream_format"),
    [
        ("speak", "anna", Ending.DONE, "eos", "audio"),
        ("speak", "anna", Ending.DONE, "eos", "sse"),
        ("speak", "nobody", Ending.REFUSED, "unknown_speaker", "audio"),
        ("before BUSY", "anna", Ending.REFUSED, "busy", "audio"),
        ("before ENGINE_ERROR", "anna", Ending.FAILED, "engine_error", "sse"),
        ("after ENGINE_ERROR", "anna", Ending.CUT_OFF, "engine_error", "audio"),
        ("after ENGINE_ERROR", "anna", Ending.CUT_OFF, "engine_error", "sse"),
        ("before SESSION_TIMEOUT", "anna", Ending.TIMED_OUT, "session_timeout", "audio"),
        ("after SESSION_TIMEOUT", "anna", Ending.TIMED_OUT, "session_timeout", "sse"),
    ],
)
def test_over_http(
    front: Running, written: pytest.LogCaptureFixture, text: str, voice: str, ending: Ending, reason: str, stream_format: str
) -> None:
    ask(front, text, voice, stream_format)
    check(front, written, ending, reason)


@pytest.mark.parametrize("path", ALL)
@pytest.mark.parametrize(
    ("text", "ending"),
    [
        ("speak", Ending.DONE),
        ("before BUSY", Ending.REFUSED),
        ("before ENGINE_ERROR", Ending.FAILED),
        ("after ENGINE_ERROR", Ending.CUT_OFF),
    ],
)
def test_over_a_websocket(front: Running, written: pytest.LogCaptureFixture, path: str, text: str, ending: Ending) -> None:
    with connect(front.ws + path, open_timeout=WAIT_S) as client:
        for message in [*begin(path, text), finish(path)]:
            client.send(message)
        wait_in_loop(front, lambda: front.service.counts.speeches == 1)
        check(front, written, ending)


@pytest.mark.parametrize("path", sorted(CANCELS))
def test_a_message_that_cancels(front: Running, written: pytest.LogCaptureFixture, path: str) -> None:
    with connect(front.ws + path, open_timeout=WAIT_S) as client:
        for message in begin(path, "hold"):
            client.send(message)
        wait_in_loop(front, lambda: front.service.counts.audio_s > 0)
        client.send(json.dumps(CANCELS[path]))
        check(front, written, Ending.CANCELLED, "cancelled")


@pytest.mark.parametrize("path", ALL)
def test_a_drain_closes_each_vendors_socket_with_1001(server: FakeServer, written: pytest.LogCaptureFixture, path: str) -> None:
    with running(server.address) as front, connect(front.ws + path, open_timeout=WAIT_S) as client:
        for message in begin(path, "hold"):
            client.send(message)
        wait_in_loop(front, lambda: front.service.counts.audio_s > 0)
        asyncio.run_coroutine_threadsafe(front.service.drain(0.0), front.loop).result(WAIT_S)
        assert code_of(client) == 1001
        check(front, written, Ending.DRAINED, "shutting_down")


@pytest.mark.parametrize("path", [SINGLE, MULTI])
def test_a_drain_does_not_wait_for_a_first_message(server: FakeServer, path: str) -> None:
    with running(server.address, keys=Keys({"a-key": "mine"})) as front, connect(front.ws + path, open_timeout=WAIT_S) as client:
        wait_in_loop(front, lambda: front.access.open_sockets == 1)
        asyncio.run_coroutine_threadsafe(front.service.drain(0.0), front.loop).result(WAIT_S)
        assert code_of(client) == 1001
        wait_in_loop(front, front.access.all_left.is_set)


def code_of(client: Any) -> int | None:
    with pytest.raises(ConnectionClosed) as caught:
        while True:
            client.recv(timeout=WAIT_S)
    return None if caught.value.rcvd is None else caught.value.rcvd.code


def test_the_first_ending_counts() -> None:
    record = SpeechRecord()
    record.end(Ending.CANCELLED)
    record.fail(EngineError("x"))
    assert (record.ending, record.reason) == (Ending.CANCELLED, "cancelled")
    assert {ending_of(error("x"), has_audio=True) for error in (EngineError, BusyError, InvalidInputError)} == {Ending.CUT_OFF}
    assert ending_of(SessionTimeoutError("x"), has_audio=False) is Ending.TIMED_OUT


async def test_a_websocket_client_that_does_not_read() -> None:
    client, speaking = MemorySocket(reads=False), ScriptedService(InterfaceLimits(send_timeout_s=0.01))
    client.incoming.put_nowait(speak("Hello"))
    await asyncio.wait_for(converse(Deepgram(DeepgramOptions("anna", OutputFormat(), 4096)), client, speaking).run(), WAIT_S)
    assert +speaking.counts.endings == {Ending.TIMED_OUT: 1}
