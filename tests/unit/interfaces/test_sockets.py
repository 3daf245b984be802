"""The WebSocket protocols over real connections, with keys, limits, drain, and clients that vanish or do not read."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from gateway.keys import Keys
from interfaces.core.caller import Caller
from interfaces.core.voices import VoiceStore
from interfaces.settings import InterfaceLimits
from interfaces.web.access import Access
from interfaces.web.socket_routes import StarletteSocket, identified
from tests.clock import run_at_once
from tests.unit.client.fake_server import FakeServer
from tests.unit.interfaces.rig import ANNA, SAMPLES_PER_CHARACTER, Running, running
from tests.unit.interfaces.test_http import wait_until
from tests.unit.interfaces.vendors import ALL, CARTESIA, CARTESIA_SETTINGS, DASHSCOPE, DEEPGRAM, MULTI, SINGLE, begin, finish, task

WAIT_S = 120.0
KEY = "a-key-of-the-tests"
BYTES_PER_CHARACTER = 2 * SAMPLES_PER_CHARACTER


LIMITS = InterfaceLimits(max_message_bytes=5000)  # of ``front``


def opened(front: Running, path: str, **options: Any) -> ClientConnection:
    made: ClientConnection = connect(front.ws + path, open_timeout=WAIT_S, close_timeout=WAIT_S, **options)
    return made


def send(socket: ClientConnection, **message: Any) -> None:
    socket.send(json.dumps(message))


def receive(socket: ClientConnection) -> Any:
    message = socket.recv(timeout=WAIT_S)
    return message if isinstance(message, bytes) else json.loads(message)


def until(socket: ClientConnection, kind: str) -> tuple[list[Any], bytes]:
    """Events up to the one of this type, and the audio between."""
    events: list[Any] = []
    audio = b""
    while not events or events[-1].get("type") != kind:
        message = receive(socket)
        if isinstance(message, bytes):
            audio += message
        else:
            events.append(message)
    return events, audio


def test_deepgram_speaks_turn_after_turn_and_closes(front: Running) -> None:
    with opened(front, DEEPGRAM) as socket:
        assert receive(socket)["type"] == "Connected"
        for text in ("Hello world.", "Again."):
            for piece in (text[:3], text[3:]):
                send(socket, type="Speak", text=piece)
            send(socket, type="Flush")
            events, audio = until(socket, "SpeechMetadata")
            assert [event["type"] for event in events] == ["SpeechStarted", "Flushed", "SpeechMetadata"]
            assert len(audio) == len(text) * BYTES_PER_CHARACTER
        send(socket, type="Interrupt", playback_offset={"type": "time_ms", "value": 300})
        assert receive(socket)["type"] == "SpeechInterrupted"
        send(socket, type="Close")
        assert receive(socket)["type"] == "SessionMetadata"
        with pytest.raises(ConnectionClosed) as caught:
            receive(socket)
        assert caught.value.rcvd is not None and caught.value.rcvd.code == 1000


def test_cartesia_contexts_speak_beside_each_other_with_words(front: Running) -> None:
    with opened(front, CARTESIA) as socket:
        texts = {"c1": "First one.", "c2": "And 你好 too."}
        for name, text in texts.items():
            for piece in (text[:3], text[3:]):
                send(socket, **CARTESIA_SETTINGS, transcript=piece, context_id=name, add_timestamps=True, **{"continue": True})
            send(socket, **CARTESIA_SETTINGS, transcript="", context_id=name, **{"continue": False})
        audio, words = {"c1": b"", "c2": b""}, dict[str, list[str]](c1=[], c2=[])
        done: list[str] = []
        while len(done) < 2:
            message = receive(socket)
            name = message["context_id"]
            assert name not in done
            if message["type"] == "chunk":
                audio[name] += base64.b64decode(message["data"])
            elif message["type"] == "timestamps":
                words[name] += message["word_timestamps"]["words"]
            else:
                assert message["type"] == "done"
                done.append(name)
        assert {name: len(data) for name, data in audio.items()} == {name: len(text) * BYTES_PER_CHARACTER for name, text in texts.items()}
        assert words == {"c1": ["First", "one."], "c2": ["And", "你", "好", "too."]}


def test_elevenlabs_stream_input_closes_with_1000(front: Running) -> None:
    with opened(front, SINGLE) as socket:
        for text in (" ", "Hello ", "world ", ""):
            send(socket, text=text)
        data = b""
        with pytest.raises(ConnectionClosed) as caught:
            while True:
                data += base64.b64decode(receive(socket).get("audio") or "")
        assert caught.value.rcvd is not None and caught.value.rcvd.code == 1000
        assert len(data) == len("Hello world ") * BYTES_PER_CHARACTER


def test_dashscope_runs_task_after_task(server: FakeServer, front: Running) -> None:
    before = len(server.received)
    with opened(front, DASHSCOPE) as socket:
        for first, is_ssml in (("你好， ", False), ("<speak>好", True)):
            socket.send(task("run-task", voice="anna", format="pcm", sample_rate=24000, enable_ssml=True))
            for piece in (first, "今天"):
                socket.send(task("continue-task", {"text": piece}))
            socket.send(task("finish-task"))
            audio, event = b"", ""
            while event != "task-finished":
                message = receive(socket)
                if isinstance(message, bytes):
                    audio += message
                else:
                    event = message["header"]["event"]
            text = f"{first.strip()}今天"  # the blank between the words is no text
            assert len(audio) == len(text) * BYTES_PER_CHARACTER
            start = next(one for one in server.received[before:] if one.flag("is_start"))
            assert (start.inputs.get("text_type") == b"ssml") == is_ssml
            before = len(server.received)


@pytest.mark.parametrize("path", ALL)
def test_keys_come_in_headers_or_in_the_subprotocol(server: FakeServer, path: str) -> None:
    with running(server.address, keys=Keys({KEY: "mine"})) as front:
        for options in (
            {"additional_headers": {"Authorization": f"Token {KEY}"}},
            {"additional_headers": {"xi-api-key": KEY}},
            {"additional_headers": {"X-API-Key": KEY}},
            {"subprotocols": ["token", KEY]},
        ):
            with opened(front, path, **options) as socket:
                assert socket.subprotocol == ("token" if "subprotocols" in options else None)
        wrong: list[dict[str, Any]] = [
            {"subprotocols": ["token", "wrong"]},
            {"subprotocols": ["token"]},
            {"additional_headers": {"xi-api-key": "no"}},
        ]
        for refused in wrong if path in (MULTI, SINGLE) else [{}, *wrong]:  # ElevenLabs' first message may have the key
            with pytest.raises(InvalidStatus) as caught:
                opened(front, path, **refused)
            assert caught.value.response.status_code == 401


def test_the_page_can_send_any_key(server: FakeServer) -> None:
    """Browsers take no ``/`` and no ``=`` in a subprotocol, which keys in base64 have."""
    key = "9Yv/0XcQ+T2m7w=="
    with running(server.address, keys=Keys({key: "mine"})) as front:
        with opened(front, CARTESIA, subprotocols=["token", quote(key, safe="")]) as socket:
            assert socket.subprotocol == "token"


@pytest.mark.parametrize("path", [MULTI, SINGLE])
@pytest.mark.parametrize("key", [{"xi_api_key": KEY}, {"xi-api-key": KEY}, {"authorization": f"Bearer {KEY}"}])
def test_elevenlabs_keys_come_in_the_first_message(server: FakeServer, path: str, key: dict[str, str]) -> None:
    with running(server.address, keys=Keys({KEY: "mine"})) as front, opened(front, path) as socket:
        send(socket, text=" ", context_id="c", **key)
        send(socket, text="Hello. ", context_id="c", flush=True)
        assert len(base64.b64decode(receive(socket)["audio"])) == len("Hello. ") * BYTES_PER_CHARACTER


@pytest.mark.parametrize("path", [MULTI, SINGLE])
@pytest.mark.parametrize("first", [{"text": "Hello"}, {"xi_api_key": "wrong"}, {"text": "Hello", "xi_api_key": None}])
def test_a_first_message_without_a_valid_key_ends_the_connection(server: FakeServer, path: str, first: dict[str, Any]) -> None:
    with running(server.address, keys=Keys({KEY: "mine"})) as front, opened(front, path) as socket:
        send(socket, **first)
        assert "No valid API key" in receive(socket)["error"]
        with pytest.raises(ConnectionClosed) as caught:
            send(socket, text="Hello", xi_api_key=KEY)  # too late
            receive(socket)
        assert caught.value.rcvd is not None and caught.value.rcvd.code == 1008
        assert front.service.counts.speeches == 0


def test_a_voice_of_a_key_in_the_first_message_is_that_keys(server: FakeServer) -> None:
    voices = VoiceStore((ANNA,))
    samples = np.zeros(16000, np.float32)
    mine, theirs = (voices.add(name, samples, "Hello.", Caller(name, "10.0.0.1")) for name in ("mine", "theirs"))
    with running(server.address, keys=Keys({KEY: "mine"}), voices=voices) as front:
        for voice, word in ((mine, "audio"), (theirs, "error")):
            with opened(front, MULTI.replace("anna", voice.id)) as socket:
                send(socket, text="Hello", context_id="c", xi_api_key=KEY, flush=True)
                assert receive(socket)[word]


def test_a_client_that_never_says_who_it_is_is_sent_away() -> None:
    class Silent(StarletteSocket):
        sent: list[str] = []
        code = 0

        def __init__(self) -> None:
            pass

        async def receive(self) -> str:
            await asyncio.Event().wait()
            return ""

        async def send(self, message: str | bytes) -> None:
            self.sent.append(str(message))

        async def close(self, code: int, reason: str) -> None:
            self.code = code

    silent = Silent()
    access = Access(Keys({KEY: "mine"}), InterfaceLimits())
    assert run_at_once(identified(silent, access, Caller(None, "127.0.0.1"))) is None
    assert silent.code == 1008 and "No valid API key" in silent.sent[0]


def test_what_cannot_be_spoken_is_refused_before_the_socket_opens(front: Running) -> None:
    for path, status in (
        ("/v2/speak?model=nobody", 404),
        ("/v1/speak?model=nobody", 404),
        ("/v1/speak?model=anna&encoding=opus", 400),
        ("/v1/speak?model=anna&speed=fast", 400),
        ("/v2/speak?model=anna&encoding=mp3", 400),
        ("/v2/speak?model=anna&lexicon=[]", 400),
        ("/v2/speak?model=anna&speed=9", 400),
        ("/v1/text-to-speech/nobody/multi-stream-input", 404),
        ("/v1/text-to-speech/anna/stream-input?output_format=pcm_1", 400),
    ):
        with pytest.raises(InvalidStatus) as caught:
            opened(front, path)
        assert caught.value.response.status_code == status and b"error" in (caught.value.response.body or b"")


@pytest.mark.parametrize("path", [SINGLE, MULTI])
@pytest.mark.parametrize(("asked", "found"), [("", None), ("enable_ssml_parsing=true", b"ssml"), ("enable_ssml_parsing=false", None)])
def test_elevenlabs_text_is_ssml_where_the_address_says_so(
    server: FakeServer, front: Running, path: str, asked: str, found: bytes | None
) -> None:
    before = len(server.received)
    with opened(front, f"{path}&{asked}") as socket:
        for message in begin(path, "Some words to begin with. "):
            socket.send(message)
        wait_until(lambda: any(one.flag("is_start") for one in server.received[before:]))
    start = next(one for one in server.received[before:] if one.flag("is_start"))
    assert start.inputs.get("text_type") == found


def test_messages_beyond_the_limit_close_the_socket(front: Running) -> None:
    with opened(front, DEEPGRAM) as socket:
        receive(socket)
        socket.send("x" * 6000)
        with pytest.raises(ConnectionClosed) as caught:
            receive(socket)
        assert caught.value.rcvd is not None and caught.value.rcvd.code == 1009


def test_sockets_of_an_address_are_bounded(server: FakeServer) -> None:
    with running(server.address, limits=InterfaceLimits(max_sockets=4)) as front:
        with opened(front, DEEPGRAM), pytest.raises(InvalidStatus) as caught:
            opened(front, DEEPGRAM)
        assert caught.value.response.status_code == 429
        wait_until(lambda: front.access.open_sockets == 0)
        with opened(front, DEEPGRAM):
            pass


@pytest.mark.parametrize("path", ALL)
def test_text_without_speech_is_a_short_silence(front: Running, path: str) -> None:
    with opened(front, path) as socket:
        for sent in [*begin(path, "..."), finish(path)]:
            socket.send(sent)
        message: Any = {}
        while not (isinstance(message, bytes) or message.get("audio") or message.get("data")):
            message = receive(socket)
        data = message if isinstance(message, bytes) else base64.b64decode(message.get("audio") or message["data"])
        assert len(data) == 4800 and not any(data)
