"""LiveKit's own plugins for other services: a turn in pieces, an interruption, another turn. Arguments: host:port (for our own
plugin: gRPC of the server), which plugin, seconds for which the language model stops in the middle of the first turn. Prints JSON."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import aiohttp
from livekit.agents import APIConnectOptions, tts
from livekit.agents.types import USERDATA_TIMED_TRANSCRIPT
from livekit.plugins import bistream, cartesia, deepgram, elevenlabs, openai

PIECES = ("Hel", "lo wor", "ld, this is", " a test.", " Second", " sentence here.")
LONG = "One two three four five six seven eight nine ten. " * 4
ONCE = APIConnectOptions(max_retry=0, timeout=30.0)
KEY = "any-key-of-the-tests"


def plugin(name: str, host: str, session: aiohttp.ClientSession) -> tts.TTS[Any]:
    if name == "openai":
        return openai.TTS(base_url=f"http://{host}/v1", api_key=KEY, voice="alloy")
    if name == "elevenlabs":
        return elevenlabs.TTS(base_url=f"http://{host}/v1", api_key=KEY, voice_id="anna", http_session=session)
    if name == "elevenlabs-words":
        pcm: Any = "pcm_24000"
        return elevenlabs.TTS(
            base_url=f"http://{host}/v1", api_key=KEY, voice_id="anna", http_session=session, encoding=pcm, auto_mode=False
        )
    if name == "deepgram-v2":
        return deepgram.TTSv2(base_url=f"http://{host}/v2/speak", api_key=KEY, model="anna", http_session=session)
    if name == "deepgram-v1":
        return deepgram.TTS(base_url=f"http://{host}/v1/speak", api_key=KEY, model="anna", http_session=session)
    if name == "cartesia":
        return cartesia.TTS(base_url=f"http://{host}", api_key=KEY, voice="anna", http_session=session)
    voice = bistream.Speaker.recorded("assets/reference.wav", Path("assets/reference.txt").read_text(encoding="utf-8").strip())
    return bistream.TTS(host, voice)


async def write(stream: tts.SynthesizeStream, pieces: tuple[str, ...], pause_s: float) -> None:
    for number, piece in enumerate(pieces):
        await asyncio.sleep(pause_s if number == len(pieces) // 2 else 0.02)
        stream.push_text(piece)
    stream.end_input()


async def heard(speech: tts.TTS[Any], *pieces: str, pause_s: float = 0.02) -> dict[str, Any]:
    """A whole turn, or for plugins without a stream a whole text."""
    seconds, words = 0.0, ""
    if not speech.capabilities.streaming:
        async with speech.synthesize("".join(pieces), conn_options=ONCE) as chunks:
            async for event in chunks:
                seconds += event.frame.duration
        return {"seconds": seconds, "words": words}
    async with speech.stream(conn_options=ONCE) as stream:
        writing = asyncio.create_task(write(stream, pieces, pause_s))
        async for event in stream:
            seconds += event.frame.duration
            words += "".join(event.frame.userdata.get(USERDATA_TIMED_TRANSCRIPT, []))
        await writing
    return {"seconds": seconds, "words": words}


async def interrupted(speech: tts.TTS[Any]) -> None:
    if not speech.capabilities.streaming:
        chunks = speech.synthesize(LONG, conn_options=ONCE)
        await anext(chunks)
        await chunks.aclose()
        return
    stream = speech.stream(conn_options=ONCE)
    stream.push_text(LONG)
    stream.flush()
    await anext(stream)
    await stream.aclose()


async def main(host: str, name: str, pause_s: str) -> None:
    metrics: list[Any] = []
    errors: list[str] = []
    async with aiohttp.ClientSession() as session, plugin(name, host, session) as speech:
        speech.on("metrics_collected", metrics.append)
        speech.on("error", lambda error: errors.append(str(error.error)))
        found = {"turn": await heard(speech, *PIECES, pause_s=float(pause_s)), "text": "".join(PIECES)}
        await interrupted(speech)
        found["after"] = await heard(speech, "Yes, ", "go on.")
    found |= {"characters": [one.characters_count for one in metrics], "errors": errors}
    print(json.dumps(found))


asyncio.run(main(*sys.argv[1:]))
