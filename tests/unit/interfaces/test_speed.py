"""A speed that the servers do not have is refused at every door, in a sentence with the range; one that they have reaches them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from websockets.sync.client import connect

from tests.unit.interfaces.rig import ReadyServer, Running
from tests.unit.interfaces.test_http import ask, error_of

RAW = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000}
CARTESIA = {"model_id": "sonic-3", "transcript": "Hi.", "voice": {"mode": "id", "id": "anna"}, "output_format": RAW}


def http(door: str, speed: float) -> tuple[str, dict[str, Any]]:
    doors: dict[str, tuple[str, dict[str, Any]]] = {
        "openai": ("/v1/audio/speech", {"model": "tts-1", "voice": "alloy", "input": "Hi.", "speed": speed}),
        "elevenlabs": ("/v1/text-to-speech/anna", {"text": "Hi.", "voice_settings": {"speed": speed}}),
        "elevenlabs timed": ("/v1/text-to-speech/anna/with-timestamps", {"text": "Hi.", "voice_settings": {"speed": speed}}),
        "cartesia": ("/tts/bytes", {**CARTESIA, "generation_config": {"speed": speed}}),
        "deepgram": (f"/v1/speak?model=anna&speed={speed:g}", {"text": "Hi."}),
    }
    return doors[door]


DOORS = ("openai", "elevenlabs", "elevenlabs timed", "cartesia", "deepgram")


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("speed", [0.25, 2.5, 4.0])
def test_vendors_speeds_that_the_servers_lack_are_a_400_with_the_range(front: Running, door: str, speed: float) -> None:
    answer = ask(front, "POST", *http(door, speed))
    sentence = error_of(answer)["message"]
    assert answer[0] == 400 and "0.5" in sentence and ("1.5" if door == "deepgram" else "2") in sentence


@pytest.mark.parametrize("door", DOORS)
def test_a_speed_reaches_the_server(server: ReadyServer, front: Running, door: str) -> None:
    assert ask(front, "POST", *http(door, 1.25))[0] == 200
    assert float(server.received[-1].inputs["speed"].reshape(-1)[0]) == 1.25


def test_the_sockets_refuse_it_in_their_own_forms(front: Running) -> None:
    with connect(f"{front.ws}/v1/text-to-speech/anna/stream-input") as socket:
        socket.send(json.dumps({"text": "Hi. ", "voice_settings": {"speed": 4}}))
        assert "between 0.5 and 2" in json.loads(socket.recv())["message"]
    with connect(f"{front.ws}/tts/websocket?cartesia_version=2025-04-16") as socket:
        socket.send(json.dumps({**CARTESIA, "context_id": "c", "generation_config": {"speed": 4}}))
        assert "between 0.5 and 2" in socket.recv()
    with connect(f"{front.ws}/api-ws/v1/inference") as socket:
        header = {"action": "run-task", "task_id": "t", "streaming": "duplex"}
        parameters = {"voice": "anna", "format": "pcm", "sample_rate": 24000, "rate": 4}
        socket.send(json.dumps({"header": header, "payload": {"parameters": parameters, "input": {}}}))
        assert "between 0.5 and 2" in json.loads(socket.recv())["header"]["error_message"]
