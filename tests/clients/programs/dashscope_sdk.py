"""DashScope's package: whole texts, tokens with a flush, volume, words, a cancel, an error. Arguments: host:port. Prints JSON."""

import array
import json
import sys
from typing import Any

import dashscope
from dashscope.audio.tts_v2 import AudioFormat, ResultCallback, SpeechSynthesizer

dashscope.api_key = "any-key-of-the-tests"
PCM = AudioFormat.PCM_24000HZ_MONO_16BIT
found: dict[str, Any] = {}


class Heard(ResultCallback):
    def __init__(self) -> None:
        self.bytes = self.events = 0
        self.words: list[list[Any]] = []
        self.peak = 0

    def on_data(self, data: bytes) -> None:
        self.bytes += len(data)
        self.peak = max(self.peak, *array.array("h", data))

    def on_event(self, message: str) -> None:
        self.events += 1
        output = json.loads(message)["payload"].get("output", {})
        if output.get("type") == "sentence-end":
            self.words += [[word["text"], word["begin_time"], word["end_time"]] for word in output["sentence"]["words"]]


def synthesizer(**options: Any) -> Any:
    return SpeechSynthesizer(model="cosyvoice-v2", url=f"ws://{sys.argv[1]}/api-ws/v1/inference", **{"voice": "anna", **options})


found["pcm"] = len(synthesizer(format=PCM).call("Hello world"))
found["default"] = synthesizer().call("Hello world")[:2].hex()
heard = Heard()
one = synthesizer(format=PCM, callback=heard)
for piece in ("你好", "，今天", "天气", "不错。"):
    one.streaming_call(piece)
one.streaming_flush()
one.streaming_call("再见")
one.streaming_complete()
found["tokens"], found["events"] = heard.bytes, heard.events
heard = Heard()
one = synthesizer(format=PCM, callback=heard, volume=25, additional_params={"word_timestamp_enabled": True})
one.streaming_call("Hello world")
one.streaming_complete()
found["words"], found["peak"] = heard.words, heard.peak
one = synthesizer(format=PCM, callback=Heard())
one.streaming_call("abc")
one.streaming_cancel()
found["cancelled"] = True
try:
    synthesizer(voice="nobody").call("x")
except Exception as error:
    found["error"] = str(error)
print(json.dumps(found))
