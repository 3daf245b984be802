"""ElevenLabs', Deepgram's and Cartesia's text-to-speech over HTTP, over real connections."""

from __future__ import annotations

import base64
import http.client
import json
import urllib.parse
from typing import Any

import numpy as np
import pytest

from interfaces.settings import InterfaceLimits
from tests.unit.client.fake_server import FakeServer, Received, Stream
from tests.unit.interfaces.rig import SAMPLES_PER_CHARACTER, Running, reading, running
from tests.unit.interfaces.test_http import ask, error_of, seconds

TEXT = "A text that is spoken."
RAW = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000}
LENGTH = 2 * SAMPLES_PER_CHARACTER * len(TEXT)


LIMITS = InterfaceLimits(max_text_chars=100)  # of ``front``


def deepgram(front: Running, query: str, text: Any = TEXT) -> tuple[int, Any, bytes]:
    return ask(front, "POST", f"/v1/speak?model=anna{query}", {"text": text})


def cartesia(front: Running, path: str = "/tts/bytes", **fields: Any) -> tuple[int, Any, bytes]:
    given = {"model_id": "sonic-3", "transcript": TEXT, "voice": {"mode": "id", "id": "anna"}, "output_format": RAW, "language": None}
    return ask(front, "POST", path, {**given, **fields})


def events(data: bytes) -> list[Any]:
    found = []
    for block in data.decode().strip().split("\n\n"):
        kind, line = block.split("\n")
        message = json.loads(line.removeprefix("data: "))
        assert kind == f"event: {message['type']}"
        found.append(message)
    return found


def audio_of(messages: list[Any]) -> bytes:
    return b"".join(base64.b64decode(message["data"]) for message in messages if message["type"] == "chunk")


@pytest.mark.parametrize(
    ("query", "kind", "length"),
    [
        ("&encoding=linear16&container=none&sample_rate=24000", "audio/pcm", LENGTH),
        ("&encoding=linear16&container=none&sample_rate=16000.0", "audio/pcm", LENGTH * 2 // 3),
        ("&encoding=mulaw&container=none", "audio/basic", LENGTH // 6),
        ("&encoding=linear16", "audio/wav", 44 + LENGTH),
        ("", "audio/mpeg", None),
        ("&container=wav", "audio/wav", 44 + LENGTH),
        ("&encoding=alaw&container=wav", "audio/wav", None),
        ("&encoding=mp3&bit_rate=48000", "audio/mpeg", None),
        ("&encoding=opus&container=ogg", "audio/ogg", None),
        ("&encoding=flac", "audio/flac", None),
        ("&encoding=aac", "audio/aac", None),
    ],
)
def test_deepgrams_files_and_raw_audio(front: Running, query: str, kind: str, length: int | None) -> None:
    status, headers, data = deepgram(front, query)
    assert status == 200 and headers["content-type"] == kind
    if length is None:
        assert len(TEXT) * 0.02 - 0.001 <= seconds(data) <= len(TEXT) * 0.02 + 0.15
    else:
        assert len(data) == length


@pytest.mark.parametrize(
    "query",
    [
        "&encoding=pcm", "&container=ogg", "&encoding=mp3&container=wav", "&container=zip", "&sample_rate=fast", "&sample_rate=1",
        "&encoding=mp3&bit_rate=1", "&speed=9", "&model=nobody",
    ],
)  # fmt: skip
def test_what_deepgrams_address_cannot_ask_for(front: Running, query: str) -> None:
    answer = deepgram(front, query)
    assert answer[0] == (404 if "nobody" in query else 400) and error_of(answer)["message"].endswith(".")
    assert answer[1]["x-should-retry"] == "false"


@pytest.mark.parametrize(
    ("output_format", "kind", "length"),
    [
        (RAW, "audio/pcm", LENGTH),
        ({**RAW, "encoding": "pcm_f32le"}, "audio/pcm", 2 * LENGTH),
        ({**RAW, "container": "wav"}, "audio/wav", 44 + LENGTH),
        ({"container": "wav", "encoding": "pcm_f32le", "sample_rate": 44100}, "audio/wav", None),
        ({"container": "mp3", "sample_rate": 44100, "bit_rate": 128000}, "audio/mpeg", None),
    ],
)
def test_cartesias_bytes(front: Running, output_format: dict[str, Any], kind: str, length: int | None) -> None:
    status, headers, data = cartesia(front, output_format=output_format)
    assert status == 200 and headers["content-type"] == kind
    if length is None:
        assert len(TEXT) * 0.02 - 0.001 <= seconds(data) <= len(TEXT) * 0.02 + 0.15
    else:
        assert len(data) == length


def test_cartesias_volume_and_speed_and_a_voice_by_its_id_alone(server: FakeServer, front: Running) -> None:
    data = cartesia(front, voice="anna", generation_config={"volume": 2, "speed": 1.5, "emotion": "calm"})[2]
    assert set(np.frombuffer(data, "<i2")) == {round(0.5 * 32767)}
    assert float(server.received[-1].inputs["speed"].reshape(-1)[0]) == 1.5


def test_cartesias_events_are_those_of_its_socket(front: Running) -> None:
    status, headers, data = cartesia(front, "/tts/sse", add_timestamps=True, context_id="mine")
    messages = events(data)
    assert status == 200 and headers["content-type"].startswith("text/event-stream") and headers["transfer-encoding"] == "chunked"
    assert len(audio_of(messages)) == LENGTH and {message["context_id"] for message in messages} == {"mine"}
    assert [message["type"] for message in messages if message["done"]] == ["done"] == [messages[-1]["type"]]
    words = [word for message in messages if message["type"] == "timestamps" for word in message["word_timestamps"]["words"]]
    assert words == TEXT.split()


@pytest.mark.parametrize("path", ["/tts/bytes", "/tts/sse"])
@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"transcript": ""}, 400, "transcript"),
        ({"transcript": "  "}, 400, "transcript"),
        ({"transcript": "x" * 101}, 400, "transcript"),
        ({"voice": {"mode": "embedding", "embedding": [0.5]}}, 400, "voice"),
        ({"voice": None}, 400, "voice"),
        ({"output_format": None}, 400, "output_format"),
        ({"output_format": {**RAW, "encoding": ["pcm_s16le"]}}, 400, "output_format"),
        ({"output_format": {**RAW, "sample_rate": True}}, 400, "output_format"),
        ({"generation_config": {"volume": 0}}, 400, "generation_config"),
        ({"generation_config": {"speed": 9}}, 400, "speed"),
        ({"context_id": "x" * 200}, 400, "context_id"),
    ],
)
def test_wrong_fields_of_cartesias_are_named(front: Running, path: str, fields: dict[str, Any], status: int, param: str) -> None:
    answer = cartesia(front, path, **fields)
    assert (answer[0], error_of(answer)["param"]) == (status, param)


def test_events_of_a_compressed_format_are_refused(front: Running) -> None:
    assert error_of(cartesia(front, "/tts/sse", output_format={"container": "mp3", "sample_rate": 44100}))["param"] == "output_format"


def test_elevenlabs_lines_with_times(front: Running) -> None:
    answer = ask(front, "POST", "/v1/text-to-speech/anna/stream/with-timestamps?output_format=pcm_24000", {"text": TEXT})
    lines = [json.loads(line) for line in answer[2].splitlines()]
    assert answer[0] == 200 and sum(len(base64.b64decode(line["audio_base64"])) for line in lines) == LENGTH
    timed = [line["alignment"] for line in lines if line["alignment"]]
    assert "".join(character for alignment in timed for character in alignment["characters"]) == TEXT
    starts = [start for alignment in timed for start in alignment["character_start_times_seconds"]]
    ends = [end for alignment in timed for end in alignment["character_end_times_seconds"]]
    assert starts[0] == 0 and starts[1:] == ends[:-1] and ends[-1] == pytest.approx(len(TEXT) * 0.02)
    wrong = ask(front, "POST", "/v1/text-to-speech/anna/stream/with-timestamps", {"text": " "})
    assert wrong[0] == 400 and error_of(wrong)["param"] == "text"


def failing_later(request: Received, stream: Stream) -> None:
    stream.audio(request.id, np.zeros(2400), 0, 1)
    stream.error(request.id, "ENGINE_ERROR: Computing failed; try again.")


def test_a_failure_after_the_first_event_is_told_and_cuts_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    with reading(failing_later) as server, running(server.address) as front:
        with pytest.raises(http.client.IncompleteRead) as caught:
            cartesia(front, "/tts/sse")
        messages = events(caught.value.partial)
        assert [message["type"] for message in messages] == ["chunk", "error"] and messages[-1]["done"]
    assert "Traceback" not in caplog.text


def test_ssml_and_a_lexicon_are_chosen_with_each_vendor(server: FakeServer, front: Running) -> None:
    """A lexicon as JSON in a string, or as an object."""
    lexicon, path = {"SQL": "sequel"}, "/v1/text-to-speech/anna"
    for answer in (
        deepgram(front, "&text_type=ssml&lexicon=" + urllib.parse.quote(json.dumps(lexicon))),
        cartesia(front, text_type="ssml", lexicon=lexicon),
        ask(front, "POST", path, {"text": TEXT, "text_type": "ssml", "lexicon": json.dumps(lexicon)}),
    ):
        assert answer[0] == 200
        assert server.received[-1].inputs["text_type"] == b"ssml"
        assert json.loads(server.received[-1].inputs["lexicon"]) == lexicon
    answer = ask(front, "POST", path, {"text": TEXT, "lexicon": "SQL"})
    assert answer[0] == 400 and b"must be a JSON object" in answer[2]


def test_text_normalization_is_chosen_with_each_vendor(server: FakeServer, front: Running) -> None:
    path = "/v1/text-to-speech/anna"
    for answer in (
        deepgram(front, "&text_normalization=auto"),
        cartesia(front, text_normalization="auto"),
        ask(front, "POST", path, {"text": TEXT, "text_normalization": "auto"}),
    ):
        assert answer[0] == 200
        assert server.received[-1].inputs["text_normalization"] == b"auto"
    for answer in (
        deepgram(front, "&text_normalization=fr"),
        cartesia(front, text_normalization="fr"),
        ask(front, "POST", path, {"text": TEXT, "text_normalization": "fr"}),
    ):
        assert answer[0] == 400 and b"text_normalization must be one of" in answer[2]
