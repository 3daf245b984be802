"""A conversation without a network: a client that does not read, one that is silent, messages at random between audio and failures."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.errors import EngineError
from interfaces.audio.encoder import Encoder
from interfaces.audio.formats import OutputFormat
from interfaces.core.caller import Caller
from interfaces.core.servers import Servers
from interfaces.core.service import SpeechService
from interfaces.core.speech import Audio, Flushed, Speech
from interfaces.core.voices import VoiceStore
from interfaces.protocols.actions import Made
from interfaces.protocols.deepgram import Deepgram, DeepgramOptions
from interfaces.settings import InterfaceLimits
from interfaces.web.conversation import Conversation, encoded
from tests.clock import run_at_once
from tests.unit.interfaces.rig import ANNA
from tests.unit.interfaces.test_hostile_messages import HOSTILE, MAKERS, MESSAGES

WAIT_S = 120.0


class MemorySocket:
    """The test puts the client's messages in; None: the client is gone."""

    def __init__(self, reads: bool = True) -> None:
        self.incoming: asyncio.Queue[str | bytes | None] = asyncio.Queue()
        self.sent: list[str | bytes] = []
        self.closed: tuple[int, str] | None = None
        self._reads = reads

    async def receive(self) -> str | bytes | None:
        return await self.incoming.get()

    async def send(self, message: str | bytes) -> None:
        assert self.closed is None, "nothing follows a close"
        if not self._reads and isinstance(message, bytes):
            await asyncio.Event().wait()
        self.sent.append(message)

    async def close(self, code: int, reason: str) -> None:
        self.closed = (code, reason)


class ScriptedSpeech(Speech):
    """40 ms of sound for each piece, without a server; a piece with an x fails."""

    async def __aiter__(self) -> AsyncGenerator[Audio | Flushed, None]:
        spoken = 0
        while (segment := await self._next_segment()) is not None:
            await asyncio.sleep(0)
            if "x" in segment.text:
                raise EngineError("Computing failed; try again.")
            spoken += len(segment.text)
            yield Audio(np.zeros(960, np.float32), self._joiner.heard(spoken))
            segment.text = ""
            if segment.is_ended:
                self._segments.pop()
                if segment.is_flushed:
                    yield Flushed()


class ScriptedService(SpeechService):
    def __init__(self, limits: InterfaceLimits) -> None:
        super().__init__(Servers(()), VoiceStore((ANNA,)), limits)

    def open(self, voice: str, caller: Caller, values: Any = None) -> Speech:
        speech = super().open(voice, caller, values)
        speech.__class__ = ScriptedSpeech
        return speech


def converse(protocol: Any, socket: MemorySocket, service: SpeechService) -> Conversation:
    return Conversation(socket, protocol, service, Caller(None, "10.0.0.1"))


def speak(text: str) -> str:
    return json.dumps({"type": "Speak", "text": text})


def test_an_idle_socket_is_closed_and_a_speaking_one_is_not() -> None:
    async def run() -> None:
        socket, service = MemorySocket(), ScriptedService(InterfaceLimits(idle_socket_s=60.0))
        await converse(Deepgram(DeepgramOptions("anna", OutputFormat(), 4096)), socket, service).run()
        assert socket.closed is not None and socket.closed[0] == 1001
        socket = MemorySocket()
        socket.incoming.put_nowait(speak("Hello"))
        running = asyncio.ensure_future(converse(Deepgram(DeepgramOptions("anna", OutputFormat(), 4096)), socket, service).run())
        await asyncio.sleep(600.0)
        assert socket.closed is None and service.open_speeches == 1
        socket.incoming.put_nowait(None)
        await running
        assert service.open_speeches == 0

    run_at_once(run())


@pytest.mark.parametrize("name", sorted(MAKERS))
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_any_life_of_a_conversation_ends_without_a_failure_of_its_own(name: str, data: st.DataObject) -> None:
    messages = data.draw(st.lists(MESSAGES[name].map(json.dumps) | MESSAGES[name].map(json.dumps) | HOSTILE | st.just(None), max_size=12))
    faults: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: faults.append(record.getMessage())  # type: ignore[method-assign]

    async def run() -> None:
        socket, service = MemorySocket(), ScriptedService(InterfaceLimits(max_text_chars=40, max_speeches=2))
        conversation = asyncio.ensure_future(converse(MAKERS[name](), socket, service).run())
        for message in messages:
            if message is None:
                for _ in range(3):
                    await asyncio.sleep(0)  # others go on
            else:
                socket.incoming.put_nowait(message)
        socket.incoming.put_nowait(None)
        await asyncio.wait_for(conversation, WAIT_S)
        assert service.open_speeches == 0

    logger = logging.getLogger("interfaces")
    logger.addHandler(handler)
    try:
        asyncio.run(run())
    finally:
        logger.removeHandler(handler)
    assert faults == []


def broken(encoder: Encoder, samples: Any) -> bytes:
    raise RuntimeError("The codec does not like it.")


@pytest.mark.parametrize("pieces", [0, 3])
async def test_an_error_of_the_encoder_is_said_and_frees_the_place(monkeypatch: pytest.MonkeyPatch, pieces: int) -> None:
    closed: list[Encoder] = []
    monkeypatch.setattr(Encoder, "feed", broken)
    monkeypatch.setattr(Encoder, "close", lambda encoder: closed.append(encoder))
    socket, service = MemorySocket(), ScriptedService(InterfaceLimits())
    for _ in range(1 + pieces):
        socket.incoming.put_nowait(speak("Hello"))
    await asyncio.wait_for(converse(Deepgram(DeepgramOptions("anna", OutputFormat(), 4096)), socket, service).run(), WAIT_S)
    assert json.loads(socket.sent[-1])["type"] == "Error" and "The gateway failed" in str(socket.sent[-1])
    assert service.open_speeches == 0 and len(closed) == 1


def test_the_voice_goes_on_evenly_within_a_chunk_and_certainty_comes_at_its_end() -> None:
    async def chunks() -> AsyncGenerator[Audio | Flushed, None]:
        yield Audio(np.zeros(24_000, np.float32), 1, 10)
        yield Audio(np.zeros(36_000, np.float32), 5, 40)
        yield Flushed()
        yield Audio(np.zeros(24_000, np.float32), 50)  # of a server that does not tell

    async def run() -> list[Made | Flushed]:
        return [piece async for piece in encoded(chunks(), Encoder(OutputFormat()))]

    pieces = [None if isinstance(one, Flushed) else (one.duration_ms, one.text_consumed, one.text_position) for one in asyncio.run(run())]
    assert pieces[:2] == [(500.0, 0, 5), (500.0, 1, 10)]
    assert pieces[2:5] == [(500.0, 1, 20), (500.0, 1, 30), (500.0, 5, 40)]
    assert pieces[5:] == [None, (500.0, 5, None), (500.0, 50, None)]
