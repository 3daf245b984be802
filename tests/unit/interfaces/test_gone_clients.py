"""A client that goes, in each state of each protocol: its utterance is freed here, and its stream on the server ends."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from websockets.sync.client import ClientConnection, connect

from interfaces.core.record import Ending
from interfaces.core.service import Counts
from tests.unit.client.fake_server import FakeServer, Received, Stream
from tests.unit.interfaces.rig import ReadyServer, Running, running
from tests.unit.interfaces.vendors import DASHSCOPE, DEEPGRAM, MULTI, SINGLE, begin, finish

WAIT_S = 120.0
STATES = ("before the first audio", "in the audio", "after its end of text", "while it does not read")


class Server(ReadyServer):
    """Never ends a session. Says nothing to a text with an s, speaks a little for others, and very much for one with an m."""

    def __init__(self) -> None:
        self.heard_end = threading.Event()
        self.heard_text = threading.Event()
        super().__init__(self._answer)

    def _answer(self, request: Received, stream: Stream) -> None:
        text = request.inputs["target_text"]
        if request.flag("is_start"):
            size = 0 if b"s" in text else 2400
            for number in range(400 if b"m" in text else 1):
                if size:
                    stream.audio(request.id, np.zeros(24000 if b"m" in text else size), number, 1)
        self.heard_text.set()
        if request.flag("is_end"):
            self.heard_end.set()


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Server, Running]]:
    server = Server()
    with running(server.address) as made:
        yield server, made
    server.stop()


@pytest.fixture
def server(shared: tuple[Server, Running]) -> Server:
    """As if nothing had been said to it yet."""
    for event in (shared[0].heard_end, shared[0].heard_text, shared[0].stream_gone):
        event.clear()
    return shared[0]


@pytest.fixture
def front(server: Server, shared: tuple[Server, Running]) -> Running:
    shared[1].service.counts = Counts()
    return shared[1]


def is_freed(front: Running, server: FakeServer) -> None:
    assert server.stream_gone.wait(WAIT_S), "the session on the server ends"
    wait_in_loop(front, lambda: front.service.open_speeches == 0)
    assert +front.service.counts.endings == {Ending.LEFT: 1}


def wait_in_loop(front: Running, condition: Callable[[], bool]) -> None:
    """Turn after turn of the front's event loop: the server and the system, for which it may wait, have their own pace."""
    deadline = time.monotonic() + WAIT_S
    while True:
        done = threading.Event()
        front.loop.call_soon_threadsafe(done.set)
        assert done.wait(WAIT_S)
        if condition():
            return
        assert time.monotonic() < deadline, "the condition has not come"


def vanish(one: socket.socket) -> None:
    """As a process does that is killed."""
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    one.close()


def until_audio(client: ClientConnection) -> None:
    while True:
        message = client.recv(timeout=WAIT_S)
        if isinstance(message, bytes) or json.loads(message).get("audio"):
            return


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("path", [DEEPGRAM, MULTI, SINGLE, DASHSCOPE])
def test_over_a_websocket(server: Server, front: Running, path: str, state: str) -> None:
    text = {"before the first audio": "some", "while it does not read": "mm"}.get(state, "Hello")
    with connect(front.ws + path, open_timeout=WAIT_S, max_queue=1) as client:
        for message in [*begin(path, text), *([finish(path)] if state == "after its end of text" else [])]:
            client.send(message)
        assert server.heard_text.wait(WAIT_S)
        if state == "in the audio":
            until_audio(client)
        elif state == "after its end of text":
            assert server.heard_end.wait(WAIT_S)
        elif state == "while it does not read":
            until_audio(client)
            wait_in_loop(front, lambda: front.service.counts.audio_s > 5)
        vanish_under(client)
    is_freed(front, server)
    wait_in_loop(front, lambda: front.access.open_sockets == 0)


def vanish_under(client: ClientConnection) -> None:
    """The library's own thread reads the socket: it is shut, not closed, under it."""
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.socket.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("path", [DEEPGRAM, MULTI, SINGLE, DASHSCOPE])
def test_with_an_idle_socket_and_between_the_frames_of_a_message(front: Running, path: str) -> None:
    for unfinished in (b"", b"\x01\x85\0\0\0\0Hel"):  # a masked text frame that is not the last one, and is cut
        with connect(front.ws + path, open_timeout=WAIT_S) as client:
            wait_in_loop(front, lambda: front.access.open_sockets == 1)
            if unfinished:
                client.socket.sendall(unfinished)
            vanish_under(client)
        wait_in_loop(front, lambda: front.access.open_sockets == 0)


BODY = {"model": "tts-1", "voice": "anna", "response_format": "pcm"}


@pytest.mark.parametrize("state", ["before the first audio", "in the audio", "while it does not read"])
@pytest.mark.parametrize("how", ["audio", "sse", "elevenlabs"])
def test_over_http(server: Server, front: Running, how: str, state: str) -> None:
    text = {"before the first audio": "some", "in the audio": "Hello", "while it does not read": "mm"}[state]
    path = "/v1/text-to-speech/anna/stream?output_format=pcm_24000" if how == "elevenlabs" else "/v1/audio/speech"
    body = json.dumps({"text": text} if how == "elevenlabs" else {**BODY, "input": text, "stream_format": how}).encode()
    with socket.create_connection(("127.0.0.1", front.port), timeout=WAIT_S) as client:
        client.sendall(f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        assert server.heard_text.wait(WAIT_S)
        if state != "before the first audio":
            assert client.recv(100).startswith(b"HTTP/1.1 200")
        if state == "while it does not read":
            wait_in_loop(front, lambda: front.service.counts.audio_s > 5)
        vanish(client)
    is_freed(front, server)


def test_over_http_in_the_middle_of_its_body(front: Running) -> None:
    with socket.create_connection(("127.0.0.1", front.port), timeout=WAIT_S) as client:
        client.sendall(b"POST /v1/audio/speech HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{")
        wait_in_loop(front, lambda: len(front.server.server_state.tasks) == 1)
        vanish(client)
    wait_in_loop(front, lambda: not front.server.server_state.tasks and not front.server.server_state.connections)
