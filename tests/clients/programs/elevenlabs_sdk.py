"""ElevenLabs' package: text while it is written, over TLS as it insists; over HTTP; the voices. Arguments: host:port. Prints JSON."""

import base64
import json
import sys
from collections.abc import Iterator
from typing import Any

from elevenlabs.client import ElevenLabs

client = ElevenLabs(api_key="any-key-of-the-tests", base_url=f"https://{sys.argv[1]}")
found: dict[str, Any] = {}


def words() -> Iterator[str]:
    yield from ("Hello ", "there, ", "this ", "is ", "a ", "test. ")


found["realtime"] = sum(
    len(part)
    for part in client.text_to_speech.convert_realtime(voice_id="anna", text=words(), model_id="eleven_flash_v2", output_format="pcm_24000")
)
found["http"] = sum(len(part) for part in client.text_to_speech.stream(voice_id="anna", text="Hello", output_format="pcm_24000"))
timed = list(client.text_to_speech.stream_with_timestamps(voice_id="anna", text="Hello", output_format="pcm_24000"))
found["timed"] = sum(len(base64.b64decode(part.audio_base_64)) for part in timed)
found["characters"] = [character for part in timed if part.alignment for character in part.alignment.characters]
found["voices"] = [voice.voice_id for voice in client.voices.get_all().voices]
print(json.dumps(found))
