"""Deepgram's package, v1: two turns, a cleared one, the end; over HTTP. Arguments: host:port. Prints what it found, as JSON."""

import json
import sys
from typing import Any

from deepgram import DeepgramClient
from deepgram.environment import DeepgramClientEnvironment
from deepgram.speak.v1.types import SpeakV1Text

host = sys.argv[1]
environment = DeepgramClientEnvironment(base=f"http://{host}", production=f"ws://{host}", agent=f"ws://{host}", agent_rest=f"http://{host}")
client = DeepgramClient(api_key="any-key-of-the-tests", environment=environment)
found: dict[str, Any] = {"events": [], "bytes": []}
with client.speak.v1.connect(model="anna", encoding="linear16", sample_rate="24000") as socket:
    for text in ("Hello world. ", "Again. "):
        for piece in (text[:3], text[3:]):
            socket.send_text(SpeakV1Text(text=piece))
        socket.send_flush()
        found["bytes"].append(0)
        for message in socket:
            if isinstance(message, bytes):
                found["bytes"][-1] += len(message)
                continue
            found["events"].append([message.type, getattr(message, "sequence_id", None)])
            if message.type == "Flushed":
                break
    socket.send_text(SpeakV1Text(text="Never heard to its end."))
    socket.send_clear()
    for message in socket:
        if not isinstance(message, bytes):
            found["events"].append([message.type, message.sequence_id])
            break
    socket.send_close()
    found["after_close"] = sum(not isinstance(message, bytes) for message in socket)
audio = client.speak.v1.audio.generate(text="Hello", model="anna", encoding="linear16", container="none", sample_rate=24000)
found["http"] = sum(len(part) for part in audio)
print(json.dumps(found))
