"""OpenAI's package. Arguments: host:port, how long a text. Prints what it found, as JSON."""

import json
import sys
from typing import Any

import openai

client = openai.OpenAI(api_key="any-key-of-the-tests", base_url=f"http://{sys.argv[1]}/v1")
found: dict[str, Any] = {"bytes": {}}
for name in ("mp3", "opus", "aac", "flac", "wav", "pcm"):
    with client.audio.speech.with_streaming_response.create(
        model="tts-1", voice="alloy", input="Hello there. " * int(sys.argv[2]), response_format=name, extra_body={"seed": 1}
    ) as response:
        found["bytes"][name] = sum(len(part) for part in response.iter_bytes(4096))
try:
    client.audio.speech.create(model="tts-1", voice="nobody", input="x")
except openai.NotFoundError as error:
    found["error"] = [error.code, error.param, bool(error.request_id)]
found["models"] = [model.id for model in client.models.list()]
voice = client.audio.voices.create(
    name="mine",
    consent="cons_1",
    audio_sample=("a.wav", open("assets/reference.wav", "rb"), "audio/wav"),
    extra_body={"ref_text": "Words."},
)
found["voice"] = len(client.audio.speech.create(model="tts-1", voice={"id": voice.id}, input="Hello", response_format="pcm").content)
print(json.dumps(found))
