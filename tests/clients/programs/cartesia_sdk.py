"""Cartesia's package: contexts on a socket with words and a cancel, bytes, events, an error. Arguments: host:port. Prints JSON."""

import json
import sys
from typing import Any

import cartesia
from cartesia import Cartesia

host = sys.argv[1]
client = Cartesia(api_key="any-key-of-the-tests", base_url=f"http://{host}", websocket_base_url=f"ws://{host}")
RAW: Any = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000}
VOICE: Any = {"mode": "id", "id": "anna"}
found: dict[str, Any] = {"words": [], "types": []}


def read(context: Any) -> int:
    """Bytes of audio up to the end of the context."""
    total = 0
    for event in context.receive():
        found["types"].append(event.type)
        if event.type == "chunk":
            total += len(event.audio)
        elif event.type == "timestamps":
            found["words"] += event.word_timestamps.words
    return total


with client.tts.websocket_connect() as connection:
    settings = {"model_id": "sonic-3", "voice": VOICE, "output_format": RAW}
    first = connection.context(**settings, add_timestamps=True)
    for piece in ("Hel", "lo wor", "ld."):
        first.push(piece)
    first.push("", flush=True)
    first.no_more_inputs()
    found["context"] = read(first)
    cancelled = connection.context(**settings)
    cancelled.push("Never heard to its end.")
    cancelled.cancel()
    last = connection.context(model_id="sonic-3", output_format=RAW)
    last.send(transcript="After it.", voice=VOICE)
    last.no_more_inputs()  # names a voice of its own
    found["after_cancel"] = sum(
        len(event.audio) for event in last.receive() if event.type == "chunk" and event.context_id == last._context_id
    )
    wrong = connection.context(**{**settings, "voice": {"mode": "id", "id": "nobody"}})
    wrong.push("x")
    found["error"] = [(event.status_code, event.error_code) for event in wrong.receive()]
found["bytes"] = len(client.tts.generate(model_id="sonic-3", transcript="Hello", voice=VOICE, output_format=RAW).read())
events = list(client.tts.generate_sse(model_id="sonic-3", transcript="Hello", voice=VOICE, output_format=RAW, add_timestamps=True))
found["events"] = sum(len(event.audio or b"") for event in events if event.type == "chunk")
found["event_types"] = [event.type for event in events]
try:
    client.tts.generate(model_id="sonic-3", transcript="Hello", voice={"mode": "id", "id": "nobody"}, output_format=RAW)
except cartesia.NotFoundError as error:
    found["status"] = error.status_code
print(json.dumps(found))
