"""An utterance of each vendor's socket: how it begins, ends and is cancelled."""

from __future__ import annotations

import json
from typing import Any

MULTI = "/v1/text-to-speech/anna/multi-stream-input?output_format=pcm_24000"
SINGLE = "/v1/text-to-speech/anna/stream-input?output_format=pcm_24000"
DEEPGRAM = "/v2/speak?model=anna&encoding=linear16&sample_rate=24000"
DEEPGRAM_V1 = "/v1/speak?model=anna&encoding=linear16&sample_rate=24000"
CARTESIA = "/tts/websocket?cartesia_version=2025-04-16"
DASHSCOPE = "/api-ws/v1/inference"
ALL = [DEEPGRAM, DEEPGRAM_V1, MULTI, SINGLE, CARTESIA, DASHSCOPE]
CARTESIA_SETTINGS = {
    "model_id": "sonic-3",
    "voice": {"mode": "id", "id": "anna"},
    "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000},
}


def task(action: str, given: dict[str, Any] | None = None, **parameters: Any) -> str:
    header = {"action": action, "task_id": "t", "streaming": "duplex"}
    return json.dumps({"header": header, "payload": {"input": given or {}, "parameters": parameters}})


def begin(path: str, text: str) -> list[str]:
    if path == DASHSCOPE:
        parameters: dict[str, Any] = {"voice": "anna", "format": "pcm", "sample_rate": 24000}
        return [task("run-task", **parameters), task("continue-task", {"text": text})]
    if path == CARTESIA:
        return [json.dumps({**CARTESIA_SETTINGS, "context_id": "c", "transcript": text, "continue": True})]
    if path in (DEEPGRAM, DEEPGRAM_V1):
        return [json.dumps({"type": "Speak", "text": text})]
    return [json.dumps({"text": text, **({"context_id": "c"} if path == MULTI else {})})]


def finish(path: str) -> str:
    if path == DASHSCOPE:
        return task("finish-task")
    if path == CARTESIA:
        return json.dumps({**CARTESIA_SETTINGS, "context_id": "c", "transcript": "", "continue": False})
    if path in (DEEPGRAM, DEEPGRAM_V1):
        return json.dumps({"type": "Flush"})
    return json.dumps({"text": "", **({"context_id": "c", "flush": True, "close_context": True} if path == MULTI else {})})


CANCELS = {
    DEEPGRAM: {"type": "Interrupt"},
    DEEPGRAM_V1: {"type": "Clear"},
    MULTI: {"context_id": "c", "close_context": True},
    CARTESIA: {"context_id": "c", "cancel": True},
    DASHSCOPE: json.loads(task("finish-task", {"directive": "cancel"})),
}
