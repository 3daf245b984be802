"""The interfaces before two real servers: which one is taken, and what becomes of the callers when one of them dies."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.ports import port as free_port
from tests.triton.callers import Caller
from tests.triton.conftest import WAIT_TIMEOUT_S, wait_for
from tests.triton.interfaces_process import Interfaces
from tests.triton.served import Served, serving

# Two servers and their starts, one of which is repeated: more than a minute where other work has the cores.
pytestmark = pytest.mark.slow

TEXT = "A text to be spoken, by one of two servers. "
RESTART_TIMEOUT_S = 240.0
PATIENCE_S = "600"  # for sessions that wait while the test looks elsewhere


class Turn:
    """A turn of Deepgram's protocol on a socket of its own: it has been heard, and has more to say."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self.audio_bytes = 0
        self._send(type="Speak", text=TEXT)
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

    def error(self) -> tuple[str, int]:
        """Code of the event and of the close, when the server has failed."""
        code = ""
        try:
            while True:
                event = self._next()
                code = event.get("code", code)
        except ConnectionClosed as closed:
            assert closed.rcvd is not None
            return code, closed.rcvd.code


@contextmanager
def pair(folder: Path, model_dir: Path) -> Iterator[list[Served]]:
    with ExitStack() as stack:
        made = []
        for name in ("first", "second"):
            (folder / name).mkdir()
            port = free_port()
            options = ("--health-port", str(port), "--max-silence-s", PATIENCE_S)
            served = stack.enter_context(serving(folder / name, model_dir, *options, session_idle_timeout_s=PATIENCE_S))
            served.health_port = port
            made.append(served)
        yield made


@contextmanager
def other_caller(served: Served) -> Iterator[None]:
    """A session that the interfaces have not begun."""
    caller = Caller(served.grpc_url, served.new_voice())
    try:
        caller.wait_audio()
        yield
    finally:
        caller.close()


class Front:
    """The interfaces, and what they know of the servers. Pauses of the text end no session: they would free its place."""

    def __init__(self, servers: list[Served], folder: Path) -> None:
        names = [f"{one.grpc_url}/{one.health_port}" for one in servers]
        self.process = Interfaces(names[0], folder, "--server", names[1], "--speak-after-s", "0")

    def known(self, field: str) -> list[Any]:
        status, body = self.process.ask("GET", "/v1/load")
        assert status == 200
        return [server[field] for server in json.loads(body)["servers"]]

    def turn(self, stack: ExitStack) -> tuple[Turn, int]:
        """A new one, and the place of the server that speaks it."""
        before = self.known("sessions")
        url = f"ws://127.0.0.1:{self.process.port}/v2/speak?model=reference&encoding=linear16&sample_rate=24000"
        # What is not read yet must not keep it from reading, or the pings of a turn that waits would stay unanswered.
        turn = Turn(stack.enter_context(connect(url, max_queue=None, ping_interval=None)))
        (place,) = [place for place, (old, new) in enumerate(zip(before, self.known("sessions"), strict=True)) if new > old]
        return turn, place

    def speak(self) -> int:
        """The status of a whole text over HTTP."""
        status, body = self.process.ask(
            "POST", "/v1/audio/speech", {"model": "m", "voice": "alloy", "input": "Hello.", "response_format": "pcm"}
        )
        assert len(body) > 0
        return status


def test_one_of_two_servers_dies(tmp_path: Path, tiny_model_dir: Path) -> None:
    with pair(tmp_path, tiny_model_dir) as servers, ExitStack() as stack:
        (tmp_path / "interfaces").mkdir()
        front = Front(servers, tmp_path / "interfaces")
        stack.callback(front.process.kill)
        wait_for(lambda: all(front.known("is_ready")), "the readiness of both")

        # By load: a new session goes where fewer are, also where others than the interfaces have begun them.
        with other_caller(servers[0]):
            wait_for(lambda: front.known("load")[0] > front.known("load")[1], "the load of the caller")
            turn, place = front.turn(stack)
            assert place == 1 and turn.finish()["audio_duration_ms"] > 0
        wait_for(lambda: front.known("load") == [0, 0], "the end of the load")
        one, first = front.turn(stack)
        two, second = front.turn(stack)
        assert {first, second} == {0, 1}

        # One dies: its caller is told, that of the other one hears nothing of it, and new ones go there.
        dying, heard = servers[first].server, two.audio_bytes
        os.kill(dying, signal.SIGKILL)
        assert one.error() == ("NET-0000", 1011)
        wait_for(lambda: "takes no sessions" in front.process.log.read_text(encoding="utf-8"), "the notice of the death")
        assert front.speak() == 200
        assert two.finish()["audio_duration_ms"] > 0 and two.audio_bytes > heard

        # It comes back and is taken again.
        wait_for(lambda: front.known("is_ready")[first] is True, "the return", RESTART_TIMEOUT_S)
        servers[first].wait_restarted(dying)
        with other_caller(servers[second]):
            wait_for(lambda: front.known("load")[second] > front.known("load")[first], "the load of the other one")
            turn, place = front.turn(stack)
            assert place == first and turn.finish()["audio_duration_ms"] > 0
        assert "Traceback" not in front.process.log.read_text(encoding="utf-8")
