"""The interfaces as a process before a server, as ``run.sh interfaces`` starts them."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection

from tests.triton.conftest import ROOT, WAIT_TIMEOUT_S, wait_for


class Interfaces:
    """port: where it listens. Its only voice is the recording of the repository, under the name ``voice``."""

    def __init__(self, address: str, folder: Path, *arguments: str, voice: str = "reference") -> None:
        """arguments: more of its command line."""
        ready, self.log = folder / "ready", folder / "interfaces.log"
        words = [sys.executable, "-m", "interfaces", "--server", address, "--port", "0", "--ready-file", str(ready), *arguments]
        words += ["--recording", voice, "assets/reference.wav", (ROOT / "assets/reference.txt").read_text(encoding="utf-8").strip()]
        with self.log.open("w", encoding="utf-8") as log:
            self.process = subprocess.Popen(words, cwd=ROOT, stderr=log)
        wait_for(lambda: self.process.poll() is not None or (ready.exists() and ready.read_text() != ""), "the start of the interfaces")
        assert self.process.poll() is None, self.log.read_text(encoding="utf-8")
        self.port = int(ready.read_text(encoding="utf-8").rpartition(":")[2])

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_TIMEOUT_S)
        connection.request(method, path, None if body is None else json.dumps(body))
        response = connection.getresponse()
        try:
            return response.status, response.read()
        finally:
            connection.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Turn:
    """A turn of Deepgram's protocol on a socket of its own: it has been heard, and has more to say."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self.audio_bytes = 0
        self._send(type="Speak", text="A text to be spoken, at its length. ")
        while not self.audio_bytes:
            assert self._next()["type"] != "Error"

    def _send(self, **message: Any) -> None:
        self._socket.send(json.dumps(message))

    def _next(self) -> dict[str, Any]:
        """The next event; audio is counted, and is one without a type."""
        message = self._socket.recv(timeout=WAIT_TIMEOUT_S)
        if isinstance(message, str):
            return dict(json.loads(message))
        self.audio_bytes += len(message)
        return {"type": ""}

    def finish(self) -> dict[str, Any]:
        """More text, and the metadata at the end of the turn. Raises ``ConnectionClosed`` after an error of the protocol."""
        self._send(type="Speak", text="And its end.")
        self._send(type="Flush")
        while (event := self._next())["type"] != "SpeechMetadata":
            assert event["type"] != "Error", event
        return event
