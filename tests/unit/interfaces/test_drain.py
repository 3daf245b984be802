"""The whole process from SIGTERM to its end, and from a second SIGTERM to its end."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.unit.client.fake_server import Received, Stream
from tests.unit.interfaces.rig import ReadyServer
from tests.unit.interfaces.test_endings import code_of

ROOT = Path(__file__).resolve().parents[3]
WAIT_S = 120.0
SPEAK = "/v2/speak?model=anna&encoding=linear16&sample_rate=24000"


class Server(ReadyServer):
    """100 ms of audio for a start at once, and the end when ``may_end`` is set and the text is over."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        super().__init__(self._answer)
        self._starts: dict[bytes, str] = {}

    def _answer(self, request: Received, stream: Stream) -> None:
        if request.flag("is_start"):
            self._starts[request.inputs["session_id"]] = request.id
            stream.audio(request.id, np.zeros(2400), 0, 1)
        if request.flag("is_end"):
            threading.Thread(target=self._end, args=(request.inputs["session_id"], stream), daemon=True).start()

    def _end(self, session_id: bytes, stream: Stream) -> None:
        if self.may_end.wait(WAIT_S):
            stream.final(self._starts[session_id])


class Front:
    def __init__(self, folder: Path, server: str, *words: str) -> None:
        ready = folder / "ready"
        command = [sys.executable, "-m", "interfaces", "--server", server, "--speaker", "anna", "--port", "0", "--ready-file", str(ready)]
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen([*command, *words], cwd=ROOT, stderr=log)
        deadline = time.monotonic() + WAIT_S
        while not (ready.exists() and ready.read_text()):
            assert self.process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.02)
        self.url = ready.read_text()
        while self.get("/health/ready")[0] != 200:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def get(self, path: str) -> tuple[int, str | None]:
        """Status and Retry-After."""
        client = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=WAIT_S)
        client.request("GET", path)
        answer = client.getresponse()
        answer.read()
        client.close()
        return answer.status, answer.headers["retry-after"]

    def socket(self) -> ClientConnection:
        return connect(self.url.replace("http", "ws", 1) + SPEAK, open_timeout=WAIT_S, close_timeout=WAIT_S)

    def post(self) -> http.client.HTTPConnection:
        client = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=WAIT_S)
        client.request("POST", "/v1/audio/speech", '{"model": "m", "voice": "anna", "input": "Hello.", "response_format": "pcm"}')
        return client


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.may_end.set()
    made.stop()


@pytest.fixture
def front(server: Server, tmp_path: Path) -> Iterator[Front]:
    made = Front(tmp_path, server.address, "--drain-timeout-s", "60")
    yield made
    made.process.kill()
    made.process.wait()


def begin_turn(client: ClientConnection) -> None:
    client.send(json.dumps({"type": "Speak", "text": "Hello."}))
    while not isinstance(client.recv(timeout=WAIT_S), bytes):
        pass


def test_sigterm_refuses_what_is_new_ends_what_is_open_and_then_says_goodbye(front: Front, server: Server) -> None:
    with front.socket() as idle, front.socket() as speaking:
        begin_turn(speaking)
        client = front.post()
        response = client.getresponse()
        assert response.read(4800)
        front.process.send_signal(signal.SIGTERM)
        assert code_of(idle) == 1001
        status, retry_after = front.get("/health/ready")
        assert status == 503 and retry_after and front.get("/health/live")[0] == 200
        status, retry_after = front.get("/v1/models")
        assert status == 503 and retry_after and int(retry_after) > 0
        with pytest.raises(InvalidStatus) as refused:
            front.socket().__enter__()
        assert refused.value.response.status_code == 503 and refused.value.response.headers["retry-after"]
        speaking.send(json.dumps({"type": "Speak", "text": "More."}))  # the open turn goes on
        speaking.send('{"type": "Flush"}')
        assert front.process.poll() is None
        server.may_end.set()
        events: list[str] = []
        while not events or events[-1] != "SpeechMetadata":
            message = speaking.recv(timeout=WAIT_S)
            if isinstance(message, str):
                events.append(json.loads(message)["type"])
        assert response.read() == b""  # its proper end
        client.close()
        assert code_of(speaking) == 1001
    assert front.process.wait(WAIT_S) == 0


def test_a_second_sigterm_ends_at_once(front: Front) -> None:
    with front.socket() as idle, front.socket() as speaking:
        begin_turn(speaking)
        front.process.send_signal(signal.SIGTERM)
        assert code_of(idle) == 1001
        front.process.send_signal(signal.SIGTERM)
        assert code_of(speaking) == 1001
    assert front.process.wait(WAIT_S) == 0
