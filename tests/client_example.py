"""A minimal client: it starts a session, appends text while the server speaks, and receives chunks until the end.

python tests/client_example.py localhost:8001 out.wav   (needs numpy, grpcio, tritonclient and soundfile; no torch)
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import soundfile

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout without `pip install .`

from bistream.client.asyncio_client import AsyncBistreamClient, AsyncClientSession
from bistream.client.audio import read_reference
from tests.formats import SAMPLE_RATE

ASSETS = Path(__file__).resolve().parents[1] / "assets"
WORDS = "These words arrive one after another, as a language model writes them.".split()


async def append(session: AsyncClientSession) -> None:
    for word in WORDS:
        await session.push_text(word + " ")
        await asyncio.sleep(0.1)  # a language model at ten words per second
    await session.end_text()


async def main(address: str, path: str) -> None:
    voice, transcript = read_reference(ASSETS / "reference.wav"), (ASSETS / "reference.txt").read_text(encoding="utf-8").strip()
    async with AsyncBistreamClient(address).start(reference_wav=voice, reference_text=transcript) as session:  # or speaker_id="anna"
        writer = asyncio.create_task(append(session))
        with soundfile.SoundFile(path, "w", samplerate=SAMPLE_RATE, channels=1) as audio:
            async for chunk in session:  # until the end; an error of the server is raised here
                audio.write(chunk.waveform)
                seconds = len(chunk.waveform) / SAMPLE_RATE
                print(f"chunk {chunk.sequence_number}: {seconds:.2f} s, {chunk.text_consumed} characters spoken")
        await writer


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
