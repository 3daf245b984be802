"""``null`` of an optional field is as if the field were not there, in every body and every message."""

from __future__ import annotations

import json
from typing import Any

import pytest

from interfaces.protocols.elevenlabs import key_headers
from tests.unit.interfaces.machine import Player
from tests.unit.interfaces.rig import Running
from tests.unit.interfaces.test_cartesia import SETTINGS
from tests.unit.interfaces.test_hostile_messages import MAKERS
from tests.unit.interfaces.test_http import ask

FORMAT = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000}
BODIES: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "openai": (
        "/v1/audio/speech",
        {"model": "tts-1", "voice": "anna", "input": "Hello."},
        ("response_format", "sample_rate", "speed", "stream_format", "instructions", "seed", "temperature", "top_k", "top_p"),
    ),
    "elevenlabs": ("/v1/text-to-speech/anna", {"text": "Hello."}, ("voice_settings", "seed", "model_id")),
    "elevenlabs settings": ("/v1/text-to-speech/anna", {"text": "Hello.", "voice_settings": {"speed": None}}, ("seed",)),
    "deepgram": ("/v1/speak?model=anna", {"text": "Hello."}, ("callback",)),
    "cartesia": (
        "/tts/bytes",
        {
            "model_id": "sonic-3",
            "transcript": "Hello.",
            "voice": {"mode": "id", "id": "anna"},
            "output_format": {**FORMAT, "bit_rate": None},
        },
        ("generation_config", "add_timestamps", "context_id", "language", "speed"),
    ),
    "cartesia format": (
        "/tts/bytes",
        {"transcript": "Hello.", "voice": "anna", "output_format": {"container": "raw", "encoding": None, "sample_rate": None}},
        (),
    ),
    "cartesia values": (
        "/tts/bytes",
        {"transcript": "Hello.", "voice": "anna", "output_format": FORMAT, "generation_config": {"speed": None, "volume": None}},
        (),
    ),
}


@pytest.mark.parametrize("name", sorted(BODIES))
def test_bodies(front: Running, name: str) -> None:
    path, body, optional = BODIES[name]
    status, headers, data = ask(front, "POST", path, body)
    given = ask(front, "POST", path, {**body, **dict.fromkeys(optional)})
    assert (status, headers["content-type"], data) == (200, given[1]["content-type"], given[2]) and given[0] == 200


def dashscope(action: str, task_id: str = "t", **payload: Any) -> dict[str, Any]:
    return {"header": {"action": action, "task_id": task_id, "streaming": None, "attributes": None}, "payload": payload}


RUN = {
    "voice": "anna",
    "format": None,
    "sample_rate": None,
    "bit_rate": None,
    "volume": None,
    "rate": None,
    "seed": None,
    "instruction": None,
}
MESSAGES: dict[str, tuple[list[dict[str, Any]], str]] = {  # and what was opened then
    "multi": ([{"text": "Hi. ", "context_id": "c", "voice_settings": {"speed": None}, "flush": None, "close_context": None}], "Hi. "),
    "single": ([{"text": "Hi. ", "voice_settings": None, "generation_config": None, "flush": None, "xi_api_key": None}], "Hi. "),
    "cartesia": (
        [{**SETTINGS, "context_id": "c", "transcript": "Hi. ", "continue": True, "flush": None, "cancel": None, "add_timestamps": None,
          "generation_config": {"speed": None, "volume": None},
          "output_format": {"container": "raw", "encoding": None, "sample_rate": None}}],
        "Hi. ",
    ),
    "dashscope": (
        [dashscope("run-task", parameters={**RUN, "word_timestamp_enabled": None}, input=None),
         dashscope("continue-task", parameters=None, input={"text": "Hi. ", "flush": None})],
        "Hi. ",
    ),
    "deepgram": ([{"type": "Speak", "text": None}, {"type": "Configure", "speed": None}, {"type": "Speak", "text": "Hi. "}], "Hi. "),
    "deepgram v1": ([{"type": "Speak", "text": None}, {"type": "Speak", "text": "Hi. "}], "Hi. "),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_messages(name: str) -> None:
    messages, text = MESSAGES[name]
    one = Player(MAKERS[name]())
    for message in messages:
        one.receive(json.dumps(message))
    assert one.closed is None and list(one.texts.values()) == [text] and one.opened[0].values == {}


def test_interruptions_and_keys() -> None:
    one = Player(MAKERS["deepgram"]())
    one.receive(json.dumps({"type": "Speak", "text": "Hi."}))
    (event,) = one.receive(json.dumps({"type": "Interrupt", "playback_offset": {"type": None, "value": 0}}))
    assert event["type"] == "SpeechInterrupted"
    assert key_headers(json.dumps({"xi_api_key": None, "xi-api-key": "k", "authorization": None})) == {"xi-api-key": "k"}
