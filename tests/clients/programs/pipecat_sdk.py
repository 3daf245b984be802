"""Pipecat's own services for other vendors: a turn in pieces, an interruption, another turn. Arguments: host:port (for our
own service: gRPC of the server), which service, seconds for which the language model stops in the middle of the first turn. Prints JSON."""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import Any, cast

from pipecat.frames.frames import (
    ErrorFrame,
    Frame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSStoppedFrame,
    TTSTextFrame,
)
from pipecat.observers.base_observer import BaseObserver, FramePushed
from pipecat.pipeline.worker import PipelineParams
from pipecat.services.cartesia.tts import CartesiaTTSService
from pipecat.services.deepgram.flux.tts import DeepgramFluxTTSService
from pipecat.services.deepgram.tts import DeepgramTTSService
from pipecat.services.elevenlabs.tts import ElevenLabsTTSService
from pipecat.services.openai.tts import OpenAITTSService
from pipecat.services.tts_service import TextAggregationMode, TTSService
from pipecat.tests.utils import SleepFrame, run_test
from pipecat_bistream import BistreamTTSService, Speaker

PIECES = ("Hel", "lo wor", "ld, this is", " a test.", " Second", " sentence here.")
LONG = "One two three four five six seven eight nine ten. " * 4
KEY = "any-key-of-the-tests"
WAIT_S = 240.0
TOKEN = TextAggregationMode.TOKEN


def service(name: str, host: str) -> TTSService:
    if name == "openai":
        return OpenAITTSService(api_key=KEY, base_url=f"http://{host}/v1", settings=OpenAITTSService.Settings(voice="alloy"))
    if name == "elevenlabs":
        return ElevenLabsTTSService(api_key=KEY, url=f"ws://{host}", settings=ElevenLabsTTSService.Settings(voice="anna"))
    if name == "elevenlabs-tokens":
        settings = ElevenLabsTTSService.Settings(voice="anna")
        return ElevenLabsTTSService(api_key=KEY, url=f"ws://{host}", settings=settings, text_aggregation_mode=TOKEN)
    if name == "deepgram-v2":
        settings = DeepgramFluxTTSService.Settings(voice="anna")
        return DeepgramFluxTTSService(api_key=KEY, url=f"ws://{host}/v2/speak", settings=settings)
    if name == "deepgram-v1":
        return DeepgramTTSService(api_key=KEY, base_url=f"ws://{host}", settings=DeepgramTTSService.Settings(voice="anna"))
    if name == "cartesia":
        settings = CartesiaTTSService.Settings(voice="anna")
        return CartesiaTTSService(api_key=KEY, url=f"ws://{host}/tts/websocket", settings=settings, text_aggregation_mode=TOKEN)
    voice = Speaker.recorded("assets/reference.wav", Path("assets/reference.txt").read_text(encoding="utf-8").strip())
    return BistreamTTSService(host, voice)


class Watch(BaseObserver):
    """What has come out of the service so far. turns: audio in seconds, words and ends, by turn."""

    def __init__(self, watched: TTSService) -> None:
        super().__init__()
        self._watched = watched
        self._seen: set[int] = set()
        self.turns: list[dict[str, Any]] = []

    def begin(self) -> dict[str, Any]:
        self.turns.append({"seconds": 0.0, "words": [], "ends": 0})
        return self.turns[-1]

    async def on_push_frame(self, data: FramePushed) -> None:
        if data.source is not self._watched or data.frame.id in self._seen or not self.turns:
            return
        self._seen.add(data.frame.id)
        turn, frame = self.turns[-1], data.frame
        if isinstance(frame, TTSAudioRawFrame):
            turn["seconds"] += len(frame.audio) / 2 / frame.sample_rate
        elif isinstance(frame, TTSTextFrame):
            turn["words"].append(frame.text)
        elif isinstance(frame, TTSStoppedFrame):
            turn["ends"] += 1


def until(condition: Callable[[], Any], watch: Watch) -> Iterable[Frame]:
    """Holds back the frames behind it."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            print(f"nothing more comes after {watch.turns}", flush=True)
            raise SystemExit(1)
        yield SleepFrame(sleep=0.02)


def turn(watch: Watch, *pieces: str, pause_s: float = 0.0) -> Iterable[Frame]:
    """A turn, spoken to its end."""
    state, half = watch.begin(), len(pieces) // 2
    yield from (LLMFullResponseStartFrame(), *map(LLMTextFrame, pieces[:half]))
    yield SleepFrame(sleep=pause_s)
    ends = state["ends"]
    yield from (*map(LLMTextFrame, pieces[half:]), LLMFullResponseEndFrame())
    yield from until(lambda: state["ends"] > ends, watch)


def interrupted(watch: Watch) -> Iterable[Frame]:
    state = watch.begin()
    yield from (LLMFullResponseStartFrame(), LLMTextFrame(LONG))
    yield from until(lambda: state["seconds"], watch)
    yield InterruptionFrame()
    yield SleepFrame(sleep=0.3)


async def main(host: str, name: str, pause_s: str) -> None:
    speech = service(name, host)
    watch = Watch(speech)
    frames = chain(turn(watch, *PIECES, pause_s=float(pause_s)), interrupted(watch), turn(watch, "Yes, ", "go on."))
    params = PipelineParams(audio_out_sample_rate=24000, enable_metrics=True)
    _, up = await run_test(speech, frames_to_send=cast(Any, frames), pipeline_params=params, observers=[watch], start_timeout=30.0)
    errors = [frame.error for frame in up if isinstance(frame, ErrorFrame)]
    print(json.dumps({"turn": watch.turns[0], "after": watch.turns[2], "text": "".join(PIECES), "errors": errors}))


asyncio.run(main(*sys.argv[1:]))
