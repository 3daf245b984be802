"""The interfaces as a process before the real server, as ``run.sh interfaces`` starts them: OpenAI's speech, a Deepgram turn with an
interruption, a voice of one's own, and the drain."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from bistream.keeper.server_process import TritonServer
from tests.formats import SAMPLES_PER_TOKEN
from tests.triton.conftest import WAIT_TIMEOUT_S, wait_for
from tests.triton.interfaces_process import Interfaces

TEXT = "A text to be spoken."


@pytest.fixture(scope="module")
def interfaces(server: TritonServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Interfaces]:
    made = Interfaces(server.grpc_url, tmp_path_factory.mktemp("interfaces"))
    try:
        yield made
    finally:
        made.kill()


def test_openai_speech_is_the_servers(interfaces: Interfaces) -> None:
    wait_for(lambda: interfaces.ask("GET", "/health/ready")[0] == 200, "readiness")
    given = {"model": "tts-1", "input": "Hello.", "voice": "alloy", "response_format": "pcm", "seed": 3}
    lengths = []
    for audio_format in ("pcm", "wav"):
        status, body = interfaces.ask("POST", "/v1/audio/speech", {**given, "response_format": audio_format})
        assert status == 200
        assert (b"synthetic speech" in body) == (audio_format == "wav")  # the server may mark
        lengths.append(len(body) - (body.index(b"data") + 8 if audio_format == "wav" else 0))
    assert lengths[0] == lengths[1] > 0 and lengths[0] % SAMPLES_PER_TOKEN == 0  # one seed, the same speech tokens
    assert np.abs(np.frombuffer(body[44:], "<i2")).max() > 0


def test_a_turn_of_tokens_and_an_interruption(interfaces: Interfaces, server: TritonServer) -> None:
    with connect(
        f"ws://127.0.0.1:{interfaces.port}/v2/speak?model=reference&encoding=linear16&sample_rate=24000", open_timeout=WAIT_TIMEOUT_S
    ) as socket:
        for word in (TEXT * 6).split(" "):
            socket.send(json.dumps({"type": "Speak", "text": f"{word} "}))
        audio_ms = 0.0
        while audio_ms < 500:
            message = socket.recv(timeout=WAIT_TIMEOUT_S)
            audio_ms += len(message) / 48 if isinstance(message, bytes) else 0
        socket.send(json.dumps({"type": "Interrupt", "playback_offset": {"type": "time_ms", "value": 400}}))
        event: Any = {}
        while event.get("type") != "SpeechInterrupted":
            message = socket.recv(timeout=WAIT_TIMEOUT_S)
            event = {} if isinstance(message, bytes) else json.loads(message)
        assert event["audio_played_ms"] == 400 and (event["text_spoken"] + event["text_remaining"]).startswith("A text to be spoken.")
        socket.send(json.dumps({"type": "Speak", "text": "..."}))
        socket.send(json.dumps({"type": "Flush"}))
        while event.get("type") != "SpeechMetadata":
            message = socket.recv(timeout=WAIT_TIMEOUT_S)
            event = {} if isinstance(message, bytes) else json.loads(message)
    assert server.exit_code() is None


def test_the_first_signal_drains(interfaces: Interfaces) -> None:
    """Last: it ends the process."""
    with connect(f"ws://127.0.0.1:{interfaces.port}/v2/speak?model=reference", open_timeout=WAIT_TIMEOUT_S) as socket:
        socket.recv(timeout=WAIT_TIMEOUT_S)
        interfaces.process.send_signal(signal.SIGTERM)
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=WAIT_TIMEOUT_S)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1001
    assert interfaces.process.wait(WAIT_TIMEOUT_S) == 0
    assert "Traceback" not in interfaces.log.read_text(encoding="utf-8")
