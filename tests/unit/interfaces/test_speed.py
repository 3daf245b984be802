"""A speed that servers lack is refused at every door, in a sentence with the range; one that they have reaches them, and streams."""

from __future__ import annotations

import json
from typing import Any

import pytest
from websockets.sync.client import connect

from tests.unit.interfaces.rig import ReadyServer, Running
from tests.unit.interfaces.test_http import ask, error_of
from tests.unit.interfaces.test_sockets import WAIT_S
from tests.unit.interfaces.vendors import ALL, DASHSCOPE, DEEPGRAM, DEEPGRAM_V1, begin
from tests.unit.interfaces.vendors import CARTESIA as VENDOR_CARTESIA

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


def begun_at(path: str, speed: float) -> tuple[str, list[str]]:
    """The address and the messages of an utterance that does not end."""
    if path in (DEEPGRAM, DEEPGRAM_V1):
        return f"{path}&speed={speed:g}", begin(path, "Hi there. ")
    first, *others = (json.loads(message) for message in begin(path, "Hi there. "))
    if path == DASHSCOPE:
        first["payload"]["parameters"]["rate"] = speed
    else:
        first["generation_config" if path == VENDOR_CARTESIA else "voice_settings"] = {"speed": speed}
    return path, [json.dumps(message) for message in (first, *others)]


@pytest.mark.parametrize("path", ALL)
def test_at_every_socket_its_audio_comes_before_the_end_of_the_text(server: ReadyServer, front: Running, path: str) -> None:
    address, messages = begun_at(path, 1.25)
    with connect(front.ws + address) as socket:
        for message in messages:
            socket.send(message)
        while isinstance(answer := socket.recv(timeout=WAIT_S), str):
            told = json.loads(answer)
            if told.get("audio") or told.get("data"):
                break
    start = next(one for one in reversed(server.received) if one.flag("is_start") and "speaker_id" in one.inputs)
    assert float(start.inputs["speed"].reshape(-1)[0]) == 1.25 and not start.flag("is_end")


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
