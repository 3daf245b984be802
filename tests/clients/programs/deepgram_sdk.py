"""Deepgram's package, v2: a turn, an interruption, the end. Arguments: host:port. Prints what it found, as JSON."""

import json
import sys
from typing import Any

from deepgram import DeepgramClient
from deepgram.environment import DeepgramClientEnvironment
from deepgram.speak.v2.types import SpeakV2Close, SpeakV2Flush, SpeakV2Interrupt, SpeakV2InterruptPlaybackOffset, SpeakV2Speak

BYTES_PER_MS = 32  # 16 kHz, 16 bit
SECOND_TEXT = "One two three four five six seven eight nine ten. " * 4

host = sys.argv[1]
environment = DeepgramClientEnvironment(base=f"http://{host}", production=f"ws://{host}", agent=f"ws://{host}", agent_rest=f"http://{host}")
client = DeepgramClient(api_key="any-key-of-the-tests", environment=environment)
found: dict[str, Any] = {"events": [], "second_text": SECOND_TEXT}
bytes_heard = interrupt_at = 0
with client.speak.v2.connect(model="anna", encoding="linear16", sample_rate="16000") as socket:
    for piece in ("Hel", "lo wor", "ld."):
        socket.send_speak(SpeakV2Speak(type="Speak", text=piece))
    socket.send_flush(SpeakV2Flush(type="Flush"))
    for message in socket:
        if isinstance(message, bytes):
            bytes_heard += len(message)
            if interrupt_at and bytes_heard > interrupt_at:
                offset = SpeakV2InterruptPlaybackOffset(type="time_ms", value=found["audio_duration_ms"] + 100)
                socket.send_interrupt(SpeakV2Interrupt(type="Interrupt", playback_offset=offset))
                interrupt_at = 0
            continue
        found["events"].append(message.type)
        if message.type == "SpeechMetadata" and "first_turn_bytes" not in found:
            found["audio_duration_ms"], found["first_turn_bytes"] = message.audio_duration_ms, bytes_heard
            socket.send_speak(SpeakV2Speak(type="Speak", text=SECOND_TEXT))
            interrupt_at = bytes_heard + 200 * BYTES_PER_MS
        elif message.type == "SpeechInterrupted":
            found["texts"] = [message.text_spoken, message.text_remaining]
            socket.send_close(SpeakV2Close(type="Close"))
        elif message.type == "SessionMetadata":
            break
print(json.dumps(found))
