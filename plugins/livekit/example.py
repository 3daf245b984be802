"""A turn as an agent speaks it, without an agent: words at the pace of a language model in, a WAV file and the time of each word out.

python example.py localhost:8001 --speaker-id anna --output turn.wav
python example.py localhost:8001 --recording assets/reference.wav --transcript "$(cat assets/reference.txt)"
"""

from __future__ import annotations

import argparse
import asyncio
import wave
from collections.abc import AsyncIterator

from livekit.agents import tts
from livekit.agents.types import USERDATA_TIMED_TRANSCRIPT
from livekit.plugins import bistream

WORDS = "The first words are heard while the last ones are still being written. ".split(" ")
WORDS_PER_SECOND = 10


async def written() -> AsyncIterator[str]:
    """As a language model would."""
    for word in WORDS:
        yield f"{word} "
        await asyncio.sleep(1 / WORDS_PER_SECOND)


async def feed(stream: tts.SynthesizeStream) -> None:
    async for piece in written():
        stream.push_text(piece)
    stream.end_input()


async def speak(address: str, speaker: bistream.Speaker, output: str) -> None:
    async with bistream.TTS(address, speaker) as speech:
        speech.on("metrics_collected", lambda one: print(f"first audio after {one.ttfb:.3f} s, {one.audio_duration:.2f} s in all"))
        async with speech.stream() as stream:
            feeding = asyncio.create_task(feed(stream))
            with wave.open(output, "wb") as file:
                file.setparams((1, 2, speech.sample_rate, 0, "NONE", "NONE"))
                async for event in stream:
                    file.writeframes(event.frame.data.tobytes())
                    for word in event.frame.userdata.get(USERDATA_TIMED_TRANSCRIPT, []):
                        print(f"{word.start_time:6.2f} s {word}")
            await feeding


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", help="of the server's gRPC port")
    voice = parser.add_mutually_exclusive_group(required=True)
    voice.add_argument("--speaker-id", help="a registered voice or a preset of the server")
    voice.add_argument("--recording", help="a sound file of 0.5 to 30 s")
    parser.add_argument("--transcript", help="what is said in the recording")
    parser.add_argument("--output", default="turn.wav")
    options = parser.parse_args()
    if options.recording is not None:
        speaker = bistream.Speaker.recorded(options.recording, options.transcript)
    else:
        speaker = bistream.Speaker(speaker_id=options.speaker_id)
    asyncio.run(speak(options.address, speaker, options.output))


if __name__ == "__main__":
    main()
